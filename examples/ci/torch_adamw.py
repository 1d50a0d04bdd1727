"""AdamW as a class of PyTorch's optimizers: the step that is checked."""

import torch


class AdamW(torch.optim.Optimizer):
    """AdamW by lists of tensors. Steps are counted by group, not by parameter as `torch.optim` counts them."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "step": 0})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if not self.state[p]:
                    self.state[p] = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            group["step"] += 1
            grads = [p.grad for p in params]
            averages = [self.state[p]["exp_avg"] for p in params]
            squares = [self.state[p]["exp_avg_sq"] for p in params]
            (beta1, beta2), lr = group["betas"], group["lr"]
            torch._foreach_lerp_(averages, grads, 1 - beta1)
            torch._foreach_mul_(squares, beta2)
            torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
            roots = torch._foreach_sqrt(squares)
            torch._foreach_div_(roots, (1 - beta2 ** group["step"]) ** 0.5)
            torch._foreach_add_(roots, group["eps"])
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
            torch._foreach_addcdiv_(params, averages, roots, -lr / (1 - beta1 ** group["step"]))
