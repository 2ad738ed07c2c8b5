"""What two runs of a case must have in common. Every function returns a problem, or ''.

A run is the list of the ranks' results, as worker.py describes them.
"""


def outcome(run, raises):
    """Every rank has a result, or the error that the case expects."""
    for rank, result in enumerate(run):
        error = result.get("error", "")
        if bool(error) != bool(raises) or raises not in error:
            return f"rank {rank}: {error or 'no error'}{f', not {raises}' if raises else ''}"
    return ""


def same_bits(run, other, name):
    """Every loss, every shard, every error of every rank."""
    for rank, (a, b) in enumerate(zip(run, other)):
        if a.get("error") != b.get("error"):
            return f"rank {rank}: {a.get('error')}; {name}: {b.get('error')}"
        if "error" in a:
            continue
        if len(a["losses"]) != len(b["losses"]) or a["shards"].keys() != b["shards"].keys():
            return f"rank {rank}: other losses or shards than {name}"
        for i, (x, y) in enumerate(zip(a["losses"], b["losses"])):
            if x != y:
                return f"rank {rank}: loss {i} is {x}, {name}: {y}"
        for key in a["shards"]:
            if a["shards"][key] != b["shards"][key]:
                return f"rank {rank}: the final shard of {key} differs from {name}"
    return ""


def near_losses(run, other, relative=1e-6):
    """fp32 losses of two runs that add the gradients in different orders."""
    for rank, (a, b) in enumerate(zip(run, other)):
        for i, (x, y) in enumerate(zip(a.get("losses", ()), b.get("losses", ()))):
            x, y = float.fromhex(x), float.fromhex(y)
            if not abs(x - y) <= relative * abs(y):
                return f"rank {rank}: loss {i} is {x}, stock {y}: {abs(x - y) / abs(y):.1e} apart"
    return ""


def without_memory(run, gathers, reduces):
    """How many buffers FSDP2 got that have no memory, in every step."""
    wanted = {"gather": list(gathers), "reduce": list(reduces)}
    for rank, result in enumerate(run):
        if result.get("notes", {}).get("lazy") != wanted:
            return f"rank {rank}: {result.get('notes')}, not {wanted}"
    return ""


def peaks(run, stock, between):
    """The noted peaks of torch's allocations: `run`'s below so many bytes, stock's above."""
    for rank, results in enumerate(zip(run, stock)):
        ours, theirs = (result.get("notes", {}).get("peak", between) for result in results)
        if not ours < between < theirs:
            return f"rank {rank}: a peak of {ours} bytes, stock {theirs}, not around {between}"
    return ""


def reported(groups_by_rank, expected, reduces):
    """The report's groups of a case. `reduces`: Tide was allowed to carry reduce-scatters."""
    for rank, groups in enumerate(groups_by_rank):
        if expected["tier"] is None and groups:
            return f"rank {rank}: {len(groups)} groups where FSDP2 communicates nothing"
        if expected["tier"] and not groups:
            return f"rank {rank}: no group in the report"
        for group in groups:
            problem = listed(group, expected) or gathered(group, expected) \
                or reduced(group, expected, reduces)
            if problem:
                return f"rank {rank}, group {group['index']} '{group['name']}': {problem}"
    return ""


def listed(group, expected):
    """The tiers of a group's shapes against the group's own, and the calls that they add up to."""
    for what, tier in (("all_gather", "tier"), ("reduce_scatter", "reduce_scatter_tier")):
        ways = group[f"{what}_tiers"]
        if ways[-1]["tier"] != group[tier]:
            return f"{what}: tier {group[tier]}, but the lowest listed is {ways[-1]['tier']}"
        if sum(way["calls"] for way in ways) != group[f"{what}s"]:
            return f"{what}: {group[f'{what}s']} calls, listed are {ways}"
    tiers = tuple(way["tier"] for way in group["all_gather_tiers"])
    if expected["tiers"] and tiers != tuple(expected["tiers"]):
        return f"all-gather: tiers {tiers}, not {expected['tiers']}"
    return ""


def gathered(group, expected):
    tier, reason = group["tier"], group["reason"]
    if tier != expected["tier"]:
        return f"all-gather: tier {tier} ({reason}), not {expected['tier']}"
    if expected["reason"] not in reason:
        return f"all-gather: the reason '{reason}' does not mention '{expected['reason']}'"
    ours = group["all_gathers"] - group["all_gathers_stock"]
    # The first is only recorded; so is a second, before the first reduce-scatter.
    recorded = 2 if group["reduce_scatters"] <= 1 else 1
    if group["all_gathers"] <= recorded and ours == 0:
        return ""
    if (tier == "stock") != (ours == 0):
        return f"all-gather: tier {tier}, and Tide carried {ours} of {group['all_gathers']}"
    if tier != "stock" and not group["copy_bytes_avoided"]:
        return "all-gather: no copy was avoided"
    return ""


def reduced(group, expected, reduces):
    if not group["reduce_scatters"]:  # frozen, or never trained
        return ""
    wanted = "layout" if reduces and expected["reduce"] == "tide" else "stock"
    reason = expected["reduce_reason"] if reduces else ""
    ours = group["reduce_scatters"] - group["reduce_scatters_stock"]
    if group["reduce_scatter_tier"] != wanted:
        return f"reduce-scatter: tier {group['reduce_scatter_tier']} " \
               f"({group['reduce_scatter_reason']}), not {wanted}"
    if reason not in group["reduce_scatter_reason"]:
        return f"reduce-scatter: the reason '{group['reduce_scatter_reason']}' does not mention " \
               f"'{reason}'"
    if group["reduce_scatters"] == 1 and ours == 0:
        return ""
    if (wanted == "stock") != (ours == 0):
        return f"reduce-scatter: tier {wanted}, Tide carried {ours} of {group['reduce_scatters']}"
    return ""
