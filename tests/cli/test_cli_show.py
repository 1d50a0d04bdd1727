"""``refopt show``: what it prints for which arguments, and what it refuses."""

import re

import pytest

from refopt import cli
from refopt.catalog import ROUTINES
from refopt.gpu import show, target


def run(*args):
    return cli.main(["show", *args])


def printed(capsys, *args):
    assert run(*args) == 0
    out, err = capsys.readouterr()
    assert not err
    return out


def test_the_files_are_printed(capsys):
    text = printed(capsys, "adamw")
    expected = show.source(show.request("adamw"))
    assert text == printed(capsys, "adamw", "--dtype", "fp32", "--form", "merged") == expected
    assert text.startswith("# refopt.gpu: merged_adamw, form merged\n#\n# arrays: params float32, grads float32,")


LAUNCHES = {
    ("adamw",): ["before the first step: fetch_scalars[2, 128]", "in a step: merged_adamw[25021, 64]",
                 "after a step that a graph replays: settle_scalars[2, 128]"],
    ("muon",): ["Launches for the matrices of resnet50, as", "5 times products_square_symmetric[869, 128]",
                "merged_muon_update[24928, 64]"],
    ("muon", "--set", "compute=float16", "restarts=2,"): [
        "compute=float16, restarts=(2,) rows", "13 times products_symmetric_added[868 to 1736, 128], "
        "2 times merged_muon_diagonal[53, 64], 5 times products_added[1, 128], 2 times products[6238, 128], merged"],
    ("muon", "--hopper"): [
        "merged_muon, form merged, on Hopper", "5 times warpgroup_products_symmetric_added[132, 320, 0, 229472]",
        "its dynamic shared memory in bytes."],
    ("lars_momentum", "--form", "carried_norm"): [
        "after refresh(): merged_lars_momentum_norms[3223, 128], merged_lars_update_and_norm[12892, 64]",
        "in a step: merged_lars_grad_norm[3223, 128], merged_lars_update_and_norm[12892, 64]"],
    ("lars_momentum", "--form", "separate"): [
        "in a step: 161 times lars_momentum[as many as fit at a time, 128] with a barrier across the grid Below"]}


@pytest.mark.parametrize("args", LAUNCHES, ids=" ".join)
def test_launches_are_told(args, capsys):
    head = printed(capsys, *args).partition("\n\n")[0]
    words = " ".join(re.sub("(?m)^#", "", head).split())
    assert not [said for said in LAUNCHES[args] if said not in words]
    assert max(map(len, head.splitlines())) <= 80 and "~" not in head


@pytest.mark.parametrize(("args", "there", "gone"), [
    (["adam", "--set", "epsilon_at=uncorrected"], "epsilon_at=uncorrected", "=corrected"),
    (["adam"], "rules/adam.py: .*rule", "philox.py"),
    (["adam", "--state", "moment2_max"], "rules/adam.py: .*amsgrad", "remainder.py"),
    (["adam", "--dtype", "fp16-amp"], "params float16, grads float16, moment1 float32", "bfloat16"),
    (["adam", "--dtype", "bf16+16"], "master_params uint16", "=stochastic"),
    (["adam", "--dtype", "bf16+16"], "refopt/gpu/remainder.py: ", "float64"),
    (["adam", "--dtype", "bf16-sr"], "rounding=stochastic", "master_params"),
    (["adam", "--dtype", "bf16-sr"], " 5 rescale_grad, 6 seed\n", "master_params"),
    (["adam", "--dtype", "bf16", "--set", "rounding=stochastic"], "refopt/gpu/philox.py: .*random4", "master_params"),
    (["muon"], "refopt/gpu/products.py: products_square_symmetric,", "plain_products"),
    (["muon"], "compute=bfloat16, restarts=None\n", "diagonal"),
    (["muon", "--set", "restarts=2,4"], "elements.py: [^-]*merged_muon_diagonal,", "plain_products"),
    (["muon", "--set", "compute=float32"], "refopt/gpu/plain_products.py: plain_products", "mma"),
    (["muon", "--hopper"], "refopt/gpu/warpgroup_products.py: warpgroup_products_square_symmetric,", "mma_"),
    (["muon", "--dtype", "fp64"], "compute=float64", "plain_products_square_symmetric_float32"),
    (["lamb", "--dtype", "fp64"], "# choices: always_adapt=False\n", "load_float16")])
def test_dtypes_choices_and_states(args, there, gone, capsys):
    """In the header, and in the names above the files."""
    head, *others = re.split("(?m)^(?=# ---- )", printed(capsys, *args))
    heads = head + "".join(re.match("(?:# .*\n)*", text)[0] for text in others)
    assert re.search(there, heads) and gone not in heads


REFUSED = [
    (["adam", "--form", "carried_norm"], "form: expected one of separate, merged, got 'carried_norm'"),
    (["adam", "--set", "epsilon"], "argument --set: expected NAME=VALUE, got 'epsilon'"),
    (["adam", "--set", "3=4"], "argument --set: expected NAME=VALUE, got '3=4'"),
    (["adam", "--set", "adapt=norms"], "choices: expected one of epsilon_at, decay, maximize, rounding, got 'adapt'"),
    (["adam", "--set", "epsilon_at=inside"], "epsilon_at: expected one of corrected, uncorrected, got 'inside'"),
    (["momentum", "--set", "use_nesterov=1"], "use_nesterov: expected one of False, True, got 1"),
    (["sgd", "--state", "moment2_max"], "states: sgd has no optional states, got moment2_max"),
    (["adam", "--state", "moment1"], "states: expected one of moment2_max, got 'moment1'"),
    (["lars_momentum", "--dtype", "bf16-sr"], "dtype: expected one of fp32, fp64, fp16, bf16, fp16-amp, bf16-amp, "),
    (["muon", "--set", "compute=float64"], "compute: expected one of bfloat16, float16, float32, got 'float64'"),
    (["muon", "--set", "restarts=2"], "restarts: expected a list of iterations, such as (2,), got int"),
    (["muon", "--set", "restarts=2,"], "restarts: expected one after at most 2 iterations in bfloat16, before R is"),
    (["muon", "--dtype", "fp64", "--set", "restarts=0,"], "restarts[0]: expected an integer of at least 1, got 0"),
    (["muon", "--set", "coefficients=you"], "adjust_lr, compute, restarts, got 'coefficients'"),
    (["adam", "--set", "restarts=2,"], "epsilon_at, decay, maximize, rounding, got 'restarts'"),
    (["adam", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
    (["adan"], "argument ROUTINE: invalid choice: 'adan'"), ([], "the following arguments are required: ROUTINE"),
    (["adam", "--set", "routine=sgd"], "choices: expected one of epsilon_at, decay, maximize, rounding, got 'routine'")]


@pytest.mark.parametrize(("args", "said"), REFUSED, ids=lambda x: " ".join(x) if isinstance(x, list) else "")
def test_what_is_refused(args, said, capsys, tmp_path):
    """With status 2, in 80 columns, and no file is made."""
    out = tmp_path / "out.py"
    assert run(*args, "--out", str(out)) == 2
    printed, err = capsys.readouterr()
    assert said in " ".join(err.split()) and not printed and not out.exists()
    assert max(map(len, err.splitlines())) <= 80


@pytest.mark.parametrize(("given", "error", "said"), [
    (("adan",), ValueError, "^show: routine: expected one of sgd, .*, got 'adan'$"),
    (("adam", "float32"), ValueError, "^show: dtype: expected one of fp32, .*, got 'float32'$"),
    (("adam", "fp32", "twice"), ValueError, "^show: form: expected one of separate, merged, got 'twice'$"),
    (("adam", "fp32", None, "moment2_max"), TypeError, "^show: states: expected a sequence of names, got "),
    (("adam", "fp32", None, [3]), TypeError, r"^show: states\[0\]: expected a name, got 3$"),
    ((ROUTINES["adam"],), ValueError, "^show: routine: expected one of")])
def test_what_python_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        show.request(*given)


def test_a_file_instead_of_standard_output(capsys, tmp_path):
    out = tmp_path / "sgd.py"
    assert printed(capsys, "sgd", "--out", str(out)) == "" and out.read_text() == show.source(show.request("sgd"))
    assert run("sgd", "--out", str(tmp_path)) == 2
    assert capsys.readouterr() == ("", f"refopt: --out: cannot write to '{tmp_path}': Is a directory\n")


def test_ptx(capsys):
    if why := target.no_compiler():
        pytest.skip(f"compiles no PTX: {why}")
    text = printed(capsys, "sgd", "--ptx")
    assert text.startswith("// merged_sgd\n") and ".target sm_90" in text and "ld.global.v4.f32" in text
    assert len(re.findall(r"(?m)^\.visible \.entry ", text)) == 1
