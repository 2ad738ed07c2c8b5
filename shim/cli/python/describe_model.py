"""Writes the parameters of a torch model as a model file; `tide plan --from-torch` runs this text.

Arguments: SCRIPT FUNCTION FD. FUNCTION of SCRIPT takes nothing and returns the module; it is called
under the meta device, so no memory is needed. JSON, which is YAML too, goes to file descriptor FD.

Groups follow what training code shards: every entry of an outermost ModuleList or ModuleDict is a
group, equal neighbours are counted, and the other parameters are the group "root".
"""
import importlib.util
import json
import os
import sys


def load(path, function):
    spec = importlib.util.spec_from_file_location("tide_model_script", path)
    if spec is None or not os.path.isfile(path):
        sys.exit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    spec.loader.exec_module(module)
    if not callable(getattr(module, function, None)):
        sys.exit(f"{path} has no function '{function}'")
    return getattr(module, function)


def describe(model, torch):
    lists = (torch.nn.ModuleList, torch.nn.ModuleDict)
    seen = set()  # parameters that a group has already: tied ones belong to the first

    def parameters(module, outside=()):
        result = []
        for name, p in module.named_parameters():
            if id(p) in seen or name.startswith(tuple(o + "." for o in outside)):
                continue
            seen.add(id(p))
            result.append(
                {
                    "name": name,
                    "shape": list(p.shape),
                    "dtype": str(p.dtype),
                    "requires_grad": p.requires_grad,
                }
            )
        return result

    containers = {}
    for name, module in model.named_modules():
        inside = any(name == c or name.startswith(c + ".") for c in containers)
        if isinstance(module, lists) and name and not inside:
            containers[name] = module

    groups = []
    root = parameters(model, tuple(containers))
    if root:
        groups.append({"name": "root", "count": 1, "params": root})
    for name, container in containers.items():
        last = None
        for entry, child in container.named_children():
            params = parameters(child)
            if not params:
                continue
            if last and last["params"] == params:
                last["count"] += 1
                continue
            last = {"name": f"{name}.{entry}" if last else name, "count": 1, "params": params}
            groups.append(last)
    return {"model": type(model).__name__, "groups": groups}


def main(script, function, descriptor):
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no torch; set TIDE_PYTHON to a python that has one")
    build = load(script, function)
    import torch  # seconds; mistakes in the arguments are told before

    with torch.device("meta"):
        model = build()
    if not isinstance(model, torch.nn.Module):
        sys.exit(f"{function} of {script} returned {type(model).__name__}, not a torch.nn.Module")
    description = describe(model, torch)
    if not description["groups"]:
        sys.exit(f"{type(model).__name__} has no parameters")
    with os.fdopen(int(descriptor), "w") as out:
        json.dump(description, out)


main(*sys.argv[1:])
