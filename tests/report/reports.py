"""Reports of imagined jobs, as the shim writes them (shim/torch/report.cc): the same on every run."""
import json
import pathlib
import sys

PHASES = ("casts", "copy_in", "all_gather", "copy_out", "gradient_pack", "reduce_scatter")
COPIES = ("copy_in", "copy_out", "gradient_pack")


def group(index, name, size, steps, tier="layout", reason="", reduce_tier=None, reduce_reason=None):
    """A group that ran `steps` steps, two all-gathers and one reduce-scatter each."""
    reduce_tier = tier if reduce_tier is None else reduce_tier
    reduce_reason = reason if reduce_reason is None else reduce_reason
    stock = 1 if tier == "layout" else 2 * steps
    reduce_stock = 1 if reduce_tier == "layout" else steps
    copies = 2 * size * stock + 4 * size * reduce_stock
    way = {"tier": tier, "reason": reason, "shapes": 1, "calls": 2 * steps}
    reduce_way = {"tier": reduce_tier, "reason": reduce_reason, "shapes": 1, "calls": steps}
    return {
        "index": index, "name": name, "parameters": 9, "bytes": size, "tier": tier,
        "reason": reason, "reduce_scatter_tier": reduce_tier,
        "reduce_scatter_reason": reduce_reason, "all_gather_tiers": [way],
        "reduce_scatter_tiers": [reduce_way], "all_gathers": 2 * steps,
        "all_gathers_stock": stock, "reduce_scatters": steps,
        "reduce_scatters_stock": reduce_stock, "copy_bytes": copies,
        "copy_bytes_avoided": 2 * size * 2 * steps + 4 * size * steps - copies,
    }


def totals(groups, pushed):
    keys = ("all_gathers", "all_gathers_stock", "reduce_scatters", "reduce_scatters_stock",
            "copy_bytes", "copy_bytes_avoided")
    result = {key: sum(each[key] for each in groups) for key in keys}
    result.update(slot_bytes=3 << 20 if pushed else 0, slots=3 if pushed else 0, slots_in_use=0,
                  bytes_pushed=pushed)
    return result


def report(rank, world, groups, mode="on", pushed=0, nodes=1):
    met = mode == "on"
    return {"version": "0.1.0", "torch": "2.13.0", "mode": mode,
            "profile": "h200-8x400g", "rank": rank,
            "world_size": world if met else 0, "nodes": nodes if met else 0,
            "local_ranks": world // nodes if met else 0, "groups": groups,
            "totals": totals(groups, pushed)}


def layers(count, steps, size=64 << 20, **how):
    return [group(0, "", size // 4, steps, **how)] + [
        group(i, f"layers.{i - 1}", size, steps, **how) for i in range(1, count)]


def observed(rank, world, count=5, steps=20):
    """Rank 3 of every 8 works 12 % longer, and waits for nobody."""
    result = report(rank, world, layers(count, steps, tier="stock", reason="TIDE_SHIM=observe"),
                    mode="observe")
    slow = rank % 8 == 3
    seconds = {"casts": 0.002, "copy_in": 0.004, "copy_out": 0.011 + 0.0001 * (rank % 5),
               "gradient_pack": 0.013, "all_gather": 0.030 if slow else 0.062,
               "reduce_scatter": 0.034 if slow else 0.048}
    phases = {}
    for name in PHASES:
        size = 100_000_000 + 1_000_000 * PHASES.index(name)
        phases[name] = {"calls": 9 * steps, "bytes": size * steps,
                        "seconds": seconds[name] * steps, "bytes_per_step": float(size),
                        "seconds_per_step": seconds[name], "share_of_step": seconds[name] / 0.4}
    recoverable = sum(seconds[name] for name in COPIES)
    result["observed"] = {"steps": steps, "step_seconds": 0.4, **phases,
                          "recoverable_seconds_per_step": recoverable,
                          "recoverable_share_of_step": recoverable / 0.4}
    return result


def mixed(rank, world, steps=20):
    """Most goes by layout, one group coalesced, one stock, and reduce-scatters of one stock."""
    groups = layers(5, steps)
    groups[2] = group(2, "layers.1", 64 << 20, steps, "coalesced", "ranks on several nodes",
                      "stock", "ranks on several nodes")
    groups[3] = group(3, "layers.2 <b>&amp;</b>", 64 << 20, steps, "stock",
                      "parameters are torch.float8_e4m3fn")
    groups[4] = group(4, "layers.3", 64 << 20, steps, reduce_tier="stock",
                      reduce_reason="reduce dtype torch.float16")
    return report(rank, world, groups, pushed=(900 << 20) + (rank == 1) * (90 << 20))


def several_ways(rank, world, steps=20):
    """One group of which the forward's all-gathers go by layout and the backward's do not, and one
    of whose reduce-scatters has shapes that are refused for two reasons."""
    groups = layers(3, steps)
    groups[1].update(tier="coalesced", reason="nodes of different size", all_gather_tiers=[
        {"tier": "layout", "reason": "", "shapes": 1, "calls": steps},
        {"tier": "coalesced", "reason": "nodes of different size", "shapes": 1, "calls": steps}])
    groups[2].update(reduce_scatter_tier="stock", reduce_scatter_reason="300 gradients, more than 256",
                     reduce_scatter_tiers=[
        {"tier": "layout", "reason": "", "shapes": 2, "calls": steps - 5},
        {"tier": "stock", "reason": "300 gradients, more than 256", "shapes": 3, "calls": 3},
        {"tier": "stock", "reason": "gradients are Double", "shapes": 1, "calls": 2}])
    return report(rank, world, groups, pushed=900 << 20)


def write(folder, reports):
    """One file a rank; returns their paths in the order of ranks."""
    paths = []
    for each in reports:
        path = pathlib.Path(folder) / f"report-{each['rank']}.json"
        path.write_text(json.dumps(each, indent=1) + "\n")
        paths.append(str(path))
    return paths


if __name__ == "__main__":  # reports.py FOLDER observed|mixed RANKS: to look at
    write(sys.argv[1], [globals()[sys.argv[2]](rank, int(sys.argv[3]))
                        for rank in range(int(sys.argv[3]))])
