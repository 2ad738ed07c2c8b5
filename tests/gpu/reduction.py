"""FSDP2's foreach_reduce of one group, again and again with the gradients of real passes."""
import inspect

from torch.distributed.fsdp._fully_shard import _fsdp_param_group


class Reduction:
    """start() reduces the group of `model`, which is one group and has done `passes` of forward and
    backward when this is made: Tide records the first."""

    def __init__(self, model, x, passes=3):
        self.model = model
        self.reduce = _fsdp_param_group.foreach_reduce
        signature = inspect.signature(inspect.unwrap(self.reduce))

        def capture(*args, **kwargs):
            self.bound = signature.bind(*args, **kwargs)
            self.gradients = list(self.bound.arguments["unsharded_grads"])
            return self.reduce(*args, **kwargs)

        _fsdp_param_group.foreach_reduce = capture
        try:
            for _ in range(passes):
                model(x).backward()
                model.zero_grad()
        finally:
            _fsdp_param_group.foreach_reduce = self.reduce
        self.stream = self.bound.arguments["reduce_scatter_stream"]

    def start(self):
        """What foreach_reduce returns: it must live until self.stream is past it."""
        for parameter in self.bound.arguments["fsdp_params"]:
            parameter.sharded_param.grad = None
        self.bound.arguments["unsharded_grads"] = list(self.gradients)
        return self.reduce(*self.bound.args, **self.bound.kwargs)
