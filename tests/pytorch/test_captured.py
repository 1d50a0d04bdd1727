"""Steps that ``torch.cuda.graph`` captures: replays are the steps that nobody captured, and are counted."""

import pytest

from pytorch.subjects import LR, MATRICES, SHAPES, all_bits, class_of, drawn, on_a_gpu, torch
from pytorch.trials import new_gradients, pair, steps

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def a_gpu():
    on_a_gpu()


def captured(call):
    """The graph of what is done."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def begun(params, ours, others, plain):
    """The graph of a second step, after a first of both."""
    steps(ours, params, [0], fresh=False)
    steps(plain, others, [0])
    return captured(ours.step)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "RAdam", "LAMB", "Muon"])
def test_captured_as_a_graph(name):
    """Gradients that stay where they are: replays count their steps, and are the steps that nobody captured."""
    (params, ours), (others, plain) = pair(name, MATRICES if name == "Muon" else SHAPES, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        steps(ours, params, range(2), fresh=False)
    torch.cuda.current_stream().wait_stream(stream)
    steps(plain, others, range(2))
    graph = captured(ours.step)
    for step in range(2, 6):
        new_gradients(params, step, fresh=False)
        graph.replay()
        steps(plain, others, [step])
    torch.cuda.synchronize()
    assert all_bits(params) == all_bits(others)
    assert all_bits(params, ours) == all_bits(others, plain)


def test_a_captured_step_has_the_rate_of_its_time():
    """By ``refresh`` between replays."""
    (params, ours), (others, plain) = pair("AdamW", device="cuda")
    graph = begun(params, ours, others, plain)
    for step in range(1, 4):
        for optimizer in (ours, plain):
            optimizer.param_groups[0]["lr"] = LR / (1 + step)
        ours.refresh()
        new_gradients(params, step, fresh=False)
        graph.replay()
        steps(plain, others, [step])
    assert all_bits(params, ours) == all_bits(others, plain)


def test_a_whole_training_step_as_a_graph():
    """As PyTorch's documentation captures it: gradients are made in the graph's own memory."""
    kept = []
    for captures in (True, False):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).cuda()
        optimizer = class_of("AdamW")(model.parameters(), lr=2.0**-8)
        inputs = torch.zeros(4, 8, device="cuda")

        def train(model=model, optimizer=optimizer, inputs=inputs):
            optimizer.zero_grad()
            (model(inputs) ** 2).mean().backward()
            optimizer.step()

        batches = [drawn((4, 8), torch.Generator().manual_seed(step)).cuda() for step in range(8)]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for batch in batches[:3]:
                inputs.copy_(batch)
                train()
        torch.cuda.current_stream().wait_stream(stream)
        optimizer.zero_grad()
        run = captured(train).replay if captures else train
        for batch in batches[3:]:
            inputs.copy_(batch)
            run()
        torch.cuda.synchronize()
        assert {int(optimizer.state[p]["step"]) for p in model.parameters()} == {8}
        kept.append([p.detach().clone() for p in model.parameters()])
    torch.testing.assert_close(*kept, rtol=1e-4, atol=1e-5)


def test_a_captured_step_that_a_scaler_skips():
    """Is counted by the device, not at all."""
    (params, ours), (others, plain) = pair("AdamW", device="cuda")
    ours.found_inf, ours.grad_scale = (torch.full((), x, device="cuda") for x in (0.0, 1.0))
    graph = begun(params, ours, others, plain)
    for step, skips in enumerate([False, True, True, False], 1):
        ours.found_inf.fill_(skips)
        new_gradients(params, step, fresh=False)
        graph.replay()
        if not skips:
            steps(plain, others, [step])
    assert all_bits(params, ours) == all_bits(others, plain)
