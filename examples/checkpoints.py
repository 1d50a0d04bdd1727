"""Checkpoints of other libraries for refopt.torch: pass the result to load_state_dict."""

import copy

import torch


def of_apex(saved):
    """A state of Apex's FusedAdam."""
    for group in saved["param_groups"]:
        for i in group["params"]:
            saved["state"][i]["step"] = torch.tensor(float(group["step"]))
    return saved


def of_bitsandbytes(saved):
    """A state of bitsandbytes' AdamW32bit or AdamW8bit."""
    for i, state in saved["state"].items():
        kept = state["__bnb_optimizer_quant_state__"]
        saved["state"][i] = {"step": torch.tensor(float(state["step"]))}
        for k, key in ((1, "exp_avg"), (2, "exp_avg_sq")):
            x = kept[f"state{k}"]
            if x.dtype == torch.uint8:
                scales = kept[f"absmax{k}"].repeat_interleave(256)[:x.numel()]
                x = kept[f"qmap{k}"][x.long()] * scales.view(x.shape)
            saved["state"][i][key] = x
    return saved


def of_flashoptim(flash):
    """Its corrections of bf16 parameters as fp32 masters, exactly."""
    import flashoptim

    saved = flash.state_dict()
    for p, state in zip(flash.state, saved["state"].values(), strict=True):
        if state.pop("error_bits", None) is not None:
            bits = flash.state[p]["error_bits"]
            state["master_param"] = flashoptim.reconstruct_fp32_param(p, bits)
    return saved


def to_flashoptim(saved, flash):
    """Load a state of refopt into flashoptim's optimizer; masters are rounded to 24 bits."""
    import flashoptim

    flash.load_state_dict(copy.deepcopy(saved))
    for (p, state), held in zip(flash.state.items(), saved["state"].values(), strict=True):
        if state.pop("master_param", None) is not None:
            state["error_bits"] = flashoptim.compute_ecc_bits(held["master_param"], p, 3)
