"""Calls that type checkers accept, and calls that they refuse: mypy, as `make lint` runs it, reports an unused
``type: ignore`` for one that it would accept. Nothing imports this file.
"""

import numpy as np

from refopt import cpu, gpu

params, grads, moment1, moment2, powers = ([np.ones(3, np.float32)] for _ in range(5))
states = moment1, moment2, powers, powers

cpu.merged_adamw(params, grads, *states, lr=0.1)
cpu.merged_adamw(params, [None], *states, lr=[0.1], coeff=np.float32(0), epsilon_at="uncorrected", grad_factor=None)
cpu.sgd(params[0], grads[0], lr=0.1, maximize=True)
cpu.muon(params[0], grads[0], params[0], lr=0.1, blocks=cpu.Blocks(of="matrix"), coefficients=[(1.0, 2.0, 3.0)])
gpu.merged_lars_momentum(params, grads, params, lr=0.1, mu=0.9, form="cooperative", stream=3)
gpu.plan("adamw", params, grads, *states, lr=0.1)(lr=0.2)

cpu.merged_adamx(params, grads, lr=0.1)  # type: ignore[attr-defined]
gpu.merged_adamx(params, grads, lr=0.1)  # type: ignore[attr-defined]
cpu.merged_sgd(params, grads, learning_rate=0.1)  # type: ignore[call-arg]
gpu.merged_sgd(params, grads, lr=0.1, momentum=0.9)  # type: ignore[call-arg]
cpu.merged_sgd(params, grads)  # type: ignore[call-arg]
cpu.merged_momentum(params, lr=0.1, mu=0.9)  # type: ignore[call-arg]
cpu.merged_sgd(params, grads, lr="x")  # type: ignore[arg-type]
cpu.merged_sgd([1], grads, lr=0.1)  # type: ignore[list-item]
cpu.sgd(params[0], grads[0], lr=[0.1])  # type: ignore[arg-type]
gpu.merged_sgd(params, grads, lr=0.1, form="twice")  # type: ignore[arg-type]
cpu.merged_adam(params, grads, *states, lr=0.1, epsilon_at="inside")  # type: ignore[arg-type]
