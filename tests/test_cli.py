"""The command line: what it prints where, its exit codes, and that the same command gives the same bytes."""

import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

import placewright as pw
from placewright.cli import cli, options, setup
from placewright.fingerprints import graph_fingerprint
from placewright.formats import read_plan, write_graph
from placewright.machine_files import machine_toml, preset, presets
from placewright.operations import Operation, Tensor, build_graph
from placewright.problem import DISCIPLINES, OBJECTIVES

MIB = 1 << 20
ANSWER_KEYS = [
    "method", "graph", "machine", "objective", "discipline", "value_s", "bound_s", "bound_by", "gap", "feasible",
    "reason",
    "detail", "peak_bytes", "over_bytes", "device_busy_s", "channel_busy_s", "transfers", "parallelism",
    "measured_share", "seconds", "evaluations", "evaluations_per_s", "seed", "ended",
]  # fmt: skip
POOLS = ["cpu:0", "gpu:0", "gpu:1"]


def place(*args):
    """Run a command in this process: its exit code, stdout and stderr."""
    mixed = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
    result = CliRunner(**mixed).invoke(cli, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.stderr
    return result


def start(*args, **changes):
    """Start a command in a process of its own, with changes to the environment."""
    command = [sys.executable, "-m", "placewright", *map(str, args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, env=os.environ | changes, stdout=pipe, stderr=pipe)


def answer(*args):
    """The JSON object of a command that succeeds."""
    result = place(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def fork8(tmp_path):
    """A file with eight operations after one, whose outputs a last one joins; 1 MiB of weights each."""
    ops = [Operation("source", "matmul", flops=1e9, outputs=(Tensor(4096),))]
    for i in range(8):
        ops.append(Operation(f"w{i}", "parameter", "parameter", outputs=(Tensor(MIB),)))
        ops.append(
            Operation(
                f"arm{i}", "matmul", scope=f"arm.{i}", flops=4e9, inputs=["source", f"w{i}"], outputs=(Tensor(64),)
            )
        )
    ops.append(Operation("join", "matmul", flops=1e9, inputs=[f"arm{i}" for i in range(8)], outputs=(Tensor(64),)))
    path = tmp_path / "fork8.json"
    write_graph(build_graph("fork8", ops), path)
    return path


@pytest.fixture
def plan_args(fork8):
    return ("plan", fork8, "--machine", "k40x2", "--evaluations", "200")


# ---- plan -------------------------------------------------------------------------------------------


def test_plan_prints_one_json_object(plan_args):
    """Every key is there, in order, and pools go by name."""
    found = answer(*plan_args)
    assert list(found) == ANSWER_KEYS
    assert (found["method"], found["objective"], found["discipline"]) == (options.DEFAULT_METHOD, "step", "stream")
    assert (found["graph"], found["machine"], found["seed"], found["evaluations"]) == ("fork8", "k40x2", 0, 200)
    assert found["feasible"] is True
    assert 0 < found["bound_s"] <= found["value_s"]
    assert found["gap"] == pytest.approx(1 - found["bound_s"] / found["value_s"])
    assert found["bound_by"]
    assert found["parallelism"] == pytest.approx(34 / 6)
    assert list(found["peak_bytes"]) == list(found["over_bytes"]) == POOLS
    assert list(found["device_busy_s"]) == ["cpu:0", "gpu:0", "gpu:1"]
    assert set(found["transfers"]) == {"count", "bytes"}


def test_parallelism_is_of_step_alone(plan_args):
    """Sums of loads have no critical path."""
    found = answer(*plan_args, "--objective", "throughput")
    assert found["parallelism"] is None
    assert found["transfers"] is None


def test_plan_says_it_in_lines(plan_args):
    """Value, memory of each pool, busy shares and the critical path, on stdout; the rest on stderr."""
    result = place(*plan_args)
    assert result.exit_code == 0
    first, *lines = result.stdout.splitlines()
    assert first == "auto: fork8 on k40x2"
    labels = [line[2:].split("  ")[0] for line in lines]
    assert labels[:4] == ["step", "bound", "parallelism", "memory"]
    assert {"busy", "transfers", "bounded by", "waiting for", "measured", "search"} <= set(labels)
    assert sum(" of " in line for line in lines) >= 3
    assert "searching by auto" in result.stderr
    assert place(*plan_args, "--quiet").stderr == ""


def test_json_hides_progress_off_a_terminal(plan_args):
    """With --json nothing but errors and notes is on stderr."""
    assert place(*plan_args, "--json").stderr == ""


def test_a_plan_simulates_to_its_value(plan_args, fork8, tmp_path):
    """What -o wrote gives the same value, memory and bound again."""
    path = tmp_path / "plan.json.gz"
    planned = answer(*plan_args, "-o", path)
    again = answer("simulate", fork8, "--machine", "k40x2", "--placement", path)
    for key in ANSWER_KEYS:
        if key not in ("method", "evaluations", "evaluations_per_s", "seed", "seconds", "ended"):
            assert again[key] == planned[key], key
    assert (again["method"], again["evaluations"], again["seed"]) == (str(path), 1, None)
    plan = read_plan(path)
    assert plan.prediction.value_s == planned["value_s"]
    assert (plan.method, plan.seed, plan.evaluations) == ("auto", 0, 200)
    assert plan.graph_fingerprint == graph_fingerprint(pw.read_graph(fork8))


def test_simulate_writes_a_plan(fork8, tmp_path):
    """The plan of a simulated placement names where the placement came from."""
    path = tmp_path / "plan.json"
    assert place("simulate", fork8, "--machine", "k40x2", "--placement", "single:gpu:1", "-o", path).exit_code == 0
    plan = read_plan(path)
    assert (plan.method, plan.seed, set(plan.devices.values())) == ("single:gpu:1", None, {"gpu:1"})


def test_a_plan_written_again_is_the_same_plan(plan_args, fork8, tmp_path):
    """A plan that is simulated and written keeps who found it, so the file does not name another file."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    place(*plan_args, "-o", first)
    place("simulate", fork8, "--machine", "k40x2", "--placement", first, "-o", second)
    assert second.read_bytes() == first.read_bytes()
    listed = tmp_path / "list.json"
    listed.write_text(json.dumps(["gpu:0"] * pw.read_graph(fork8).n_ops))
    place("simulate", fork8, "--machine", "k40x2", "--placement", listed, "-o", second)
    assert read_plan(second).method == "given"


def test_a_plan_for_something_else_is_noted(plan_args, fork8, tmp_path):
    """Another machine, objective or discipline is said on stderr."""
    path = tmp_path / "plan.json"
    place(*plan_args, "-o", path)
    result = place("simulate", fork8, "--machine", "k40x2", "--memory", "gpu:0=1GiB", "--objective", "throughput",
                   "--discipline", "ready", "--placement", path)  # fmt: skip
    assert result.exit_code == 0
    for word in ("another machine", "objective step", "discipline stream"):
        assert word in result.stderr


def test_same_seed_same_bytes(plan_args, tmp_path):
    """In other processes, under any hash seed, plan file and JSON are the same but for the seconds."""
    runs = []
    for seed in range(4):
        path = tmp_path / f"{seed}.json"
        runs.append((start(*plan_args, "--json", "-o", path, "--seed", 3, PYTHONHASHSEED=str(seed)), path))
    seen = set()
    for run, path in runs:
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0, err
        seen.add((re.sub(r'"(seconds|evaluations_per_s)": [0-9.e-]+', "", out), path.read_bytes()))
    assert len(seen) == 1


def test_other_seeds_search_elsewhere(plan_args, tmp_path):
    """The seed reaches the search."""
    for seed in (1, 2):
        answer(*plan_args, "--method", "random", "--seed", seed, "-o", tmp_path / f"{seed}.json")
    assert read_plan(tmp_path / "1.json").devices != read_plan(tmp_path / "2.json").devices


def test_evaluations_alone_set_no_time_limit():
    """Ten seconds count only where neither limit is given."""
    limits = [options.Effort(s, n, 0, None).limit_s for s, n in ((None, None), (None, 5), (3.0, 5), (3.0, None))]
    assert limits == [options.DEFAULT_SECONDS, None, 3.0, 3.0]


def test_ctrl_c_keeps_the_best(fork8, tmp_path):
    """It ends the search at once: the plan is written, the result printed, and the exit code is 0."""
    path = tmp_path / "plan.json"
    run = start("plan", fork8, "--machine", "k40x2", "--method", "random", "--seconds", "60", "-o", path)
    for line in run.stderr:
        if "searching" in line:
            break
    time.sleep(1.0)
    began = time.monotonic()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert time.monotonic() - began < 20
    assert run.returncode == 0, err
    assert "interrupted" in err
    assert "interrupted" in out
    assert read_plan(path).prediction.feasible


def test_constraints_and_windows_reach_the_problem(fork8, tmp_path):
    """A pin holds, and what is streamed stays within its window."""
    path = tmp_path / "plan.json"
    pins = ["pin:arm=gpu:1", "pin:w?=cpu:0", "pin:source,join=gpu:1"]
    given = [word for pin in pins for word in ("--constraint", pin)]
    answer("plan", fork8, "--machine", "k40x2", "--evaluations", "5", "-o", path, *given)
    plan = read_plan(path)
    assert {plan.devices[f"arm{i}"] for i in range(8)} == {"gpu:1"}
    assert list(plan.constraints) == pins
    small, large = (
        answer("simulate", fork8, "--machine", "k40x2", "--placement", path, "--window", f"gpu:1={size}")
        for size in ("1MiB", "8MiB")
    )
    assert small["value_s"] > large["value_s"]
    assert small["peak_bytes"]["gpu:1"] < large["peak_bytes"]["gpu:1"]
    raised = place("simulate", fork8, "--machine", "k40x2", "--placement", path, "--window", "gpu:*=1KiB")
    assert "window of gpu:1 was" in raised.stderr


# ---- compare ----------------------------------------------------------------------------------------


def test_compare_lists_the_best_first(fork8):
    """JSON is a list of objects as those of `plan`; what cannot apply is named on stderr and is not in it."""
    result = place("compare", fork8, "--machine", "k40x2", "--evaluations", "100", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert all(list(entry) == [*ANSWER_KEYS, "to_best"] for entry in found)
    values = [entry["value_s"] for entry in found]
    assert values == sorted(values)
    assert [entry["to_best"] for entry in found] == pytest.approx([value / values[0] - 1 for value in values])
    shared = min(entry["bound_s"] for entry in found)
    for entry in found:  # cpsat may prove a better one than all methods share
        assert entry["bound_s"] == shared or (entry["method"] == "cpsat" and shared < entry["bound_s"] <= values[0])
    for name in ("brute-force", "expert:hdp"):
        assert f"{name} left out: " in result.stderr
    methods = [entry["method"] for entry in found]
    assert {"auto", "random", "round-robin", "single:cpu:0", "single:gpu:0", "single:gpu:1"} <= set(methods)
    assert methods.index("single:gpu:0") < methods.index("single:gpu:1")  # a tie goes by the order of methods


def test_methods_may_be_given_one_by_one_or_together(fork8):
    """Each is tried once, in whatever way and however often it is named."""
    args = ("compare", fork8, "--machine", "k40x2", "--evaluations", "50")
    found = answer(*args, "--methods", "random,round-robin", "--method", "single:gpu:0", "--methods", "random")
    assert sorted(entry["method"] for entry in found) == ["random", "round-robin", "single:gpu:0"]
    result = place(*args, "--methods", "random,rondom")
    assert result.exit_code == 2
    assert "unknown method 'rondom'" in result.stderr


@pytest.mark.parametrize(("command", "option"), [("plan", "--method"), ("compare", "--methods")])
def test_an_unknown_method_is_refused_before_the_capture(command, option):
    """A network may take long to capture, a name does not."""
    result = place(command, "nmt-8", "--machine", "k40x8", option, "anealing")
    assert result.exit_code == 2
    assert "unknown method 'anealing'. Did you mean annealing?" in result.stderr
    assert "captur" not in result.stderr.replace("single", "")


def test_a_gap_ends_a_search(fork8):
    """Once the best is proved to be near enough; a gap that nothing reaches leaves the other limits."""
    args = ("plan", fork8, "--machine", "k40x2", "--method", "random", "--evaluations", "3000")
    near = answer(*args, "--gap", "0.9")
    assert near["evaluations"] < 3000
    assert near["gap"] <= 0.9
    far = answer(*args, "--gap", "0")
    assert (far["evaluations"], far["ended"]) == (3000, "stopped")


def test_compare_prints_a_table(fork8):
    """Aligned text off a terminal: one line per method, one column per pool."""
    result = place("compare", fork8, "--machine", "k40x2", "--methods", "single:cpu:0,round-robin", "--quiet")
    titles, *rows, space, bound, parallel, measured = result.stdout.splitlines()
    assert re.split("  +", titles) == [
        "method", "step", "to bound", "to best", *POOLS, "seconds", "evaluations", "per second",
    ]  # fmt: skip
    assert [row.split()[0] for row in rows] == ["round-robin", "single:cpu:0"]
    assert re.split("  +", rows[0])[3] == "0.0%"
    assert space == ""
    assert re.match(r"bound [0-9.]+ [mu]s by ", bound)
    assert parallel.startswith("parallelism 5.67")
    assert measured == "0% of the predicted time rests on measured costs"
    assert result.stderr == ""


def test_compare_puts_feasible_first(fork8):
    """A slower placement that fits comes before a faster one that does not."""
    found = answer("compare", fork8, "--machine", "k40x2", "--memory", "gpu:0=2MiB",
                   "--methods", "single:gpu:0,single:cpu:0")  # fmt: skip
    assert [(entry["method"], entry["feasible"]) for entry in found] == [
        ("single:cpu:0", True),
        ("single:gpu:0", False),
    ]
    assert found[0]["value_s"] > found[1]["value_s"]
    assert found[1]["reason"] == "memory"
    assert "gpu:0 needs" in found[1]["detail"]
    assert (found[0]["to_best"], found[1]["to_best"], found[1]["gap"]) == (0, None, None)
    result = place("compare", fork8, "--machine", "k40x2", "--memory", "gpu:0=2MiB",
                   "--methods", "single:gpu:0,single:cpu:0")  # fmt: skip
    assert "feasible" in result.stdout.splitlines()[0]
    assert "no: memory" in result.stdout


def test_compare_without_anything_to_compare(fork8):
    """A method that refuses the problem, alone, is an error."""
    result = place("compare", fork8, "--machine", "k40x2", "--methods", "brute-force")
    assert result.exit_code == 2
    assert "brute force would try" in result.stderr
    assert place("compare", fork8, "--machine", "k40x2", "--methods", ",").exit_code == 2


# ---- wrong usage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--machine", "k40x3"], ["unknown machine 'k40x3'", "k40x2", "TOML"]),
        (["--machine", "no.toml"], ["no.toml"]),
        ([], ["name one with --machine", "k40x2", "h200x1"]),
        (["--machine", "k40x2", "--method", "hpd"], ["unknown method 'hpd'", "random"]),
        (["--machine", "k40x2", "--method", "single:gpu:7"], ["unknown method", "single:gpu:1"]),
        (["--machine", "k40x2", "--constraint", "pin:arm=gpu:7"], ["unknown device 'gpu:7'", "gpu:1"]),
        (["--machine", "k40x2", "--constraint", "pin:leg=gpu:0"], ["'leg'", "arm"]),
        (["--machine", "k40x2", "--constraint", "pen:arm=gpu:0"], ["pin:PATTERN=DEVICE"]),
        (["--machine", "k40x2", "--memory", "gpu:0"], ["NAME=SIZE"]),
        (["--machine", "k40x2", "--memory", "gpu:0=4GiBs"], ["'4GiBs'", "GiB"]),
        (["--machine", "k40x2", "--memory", "gpu:9=4GiB"], ["gpu:9", "gpu:1"]),
        (["--machine", "k40x2", "--seconds", "-1"], ["-1"]),
        (["--machine", "k40x2", "--seconds", "nan"], ["nan"]),
        (["--machine", "k40x2", "--evaluations", "0"], ["--evaluations"]),
        (["--machine", "k40x2", "--objective", "fast"], ["'step', 'max_load', 'throughput'"]),
        (["--machine", "k40x2", "--discipline", "fifo"], ["stream"]),
        (["--machine", "k40x2", "-o", "no/such/folder/plan.json"], ["no folder"]),
        (["--machine", "k40x2", "--sed", "1"], ["--sed"]),
    ],
)
def test_wrong_usage_exits_2_and_says_what_is_allowed(fork8, args, words):
    """The message names the argument, the value and what exists; nothing is on stdout."""
    result = place("plan", fork8, *args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "error: " in result.stderr
    assert all(word in result.stderr for word in words), result.stderr


def test_a_missing_or_broken_model_is_an_error(tmp_path):
    """A path that is no file, and a file that is no graph."""
    bad = tmp_path / "bad.json"
    bad.write_text('{"schema": "placewright.graph/1", "operations": 3}')
    for path, word in ((tmp_path / "none.json", "no such file"), (bad, "operations"), (tmp_path, "folder")):
        result = place("plan", path, "--machine", "k40x2")
        assert result.exit_code == 2
        assert word in result.stderr


def test_simulate_of_what_is_no_placement(fork8, tmp_path):
    """No expert, an unknown device, an unknown operation."""
    other = tmp_path / "other.json"
    other.write_text('{"arm9": "gpu:0"}')
    for source, word in (
        ("expert", "no expert"),
        ("single:gpu:4", "gpu:1"),
        (other, "arm9"),
        ("none.json", "none.json"),
    ):
        result = place("simulate", fork8, "--machine", "k40x2", "--placement", source)
        assert result.exit_code == 2
        assert word in result.stderr


def test_options_name_every_objective_and_discipline():
    """The words that are spelled out for the sake of a light import are the problem's."""
    assert options.OBJECTIVES == OBJECTIVES
    assert options.DISCIPLINES == DISCIPLINES


# ---- infeasible -------------------------------------------------------------------------------------


def test_too_little_memory_for_anything(fork8):
    """Exit code 3, with what is missing and what would help."""
    result = place("plan", fork8, "--machine", "k40x2", "--memory", "*=1MiB")
    assert result.exit_code == 3
    assert "too little" in result.stderr
    assert "machine with more memory" in result.stderr


def test_what_is_proved_not_to_fit_says_what_is_missing(fork8):
    """No search is begun; a placement that is given is simulated all the same, and the proof is a note."""
    args = ("--machine", "k40x2", "--constraint", "pin:*=gpu:0,gpu:1", "--memory", "gpu:1=3MiB")
    full = (*args, "--memory", "gpu:0=5MiB")  # as much as the weights, and nothing for operations
    for command in ("plan", "compare"):
        result = place(command, fork8, *full, "--evaluations", "10")
        assert result.exit_code == 3
        assert result.stdout == ""
        assert "no placement fits" in result.stderr
        assert re.search(r"At least [0-9.]+ KiB more in gpu:[01], or [0-9.]+ KiB more in gpu:[01] ", result.stderr)
    plan = ("plan", fork8, *args, "--memory", "gpu:0=7MiB", "--evaluations", "300", "--method", "annealing")
    assert place(*plan).exit_code == 0
    given = place("simulate", fork8, *full, "--placement", "single:gpu:0")
    assert given.exit_code == 3
    assert "no placement fits" in given.stderr
    assert "infeasible: memory" in given.stdout


def test_an_infeasible_simulation_prints_and_exits_3(fork8, tmp_path):
    """Its result is there all the same, in JSON too; stderr says which memory would do, and it does."""
    args = ("simulate", fork8, "--machine", "k40x2", "--placement", "single:gpu:0")
    path = tmp_path / "plan.json"
    result = place(*args, "--memory", "gpu:0=4MiB", "--json", "-o", path)
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert (found["feasible"], found["reason"]) == (False, "memory")
    assert found["over_bytes"]["gpu:0"] == found["peak_bytes"]["gpu:0"] - 4 * MIB > 0
    assert "Largest in gpu:0" in result.stderr
    assert not read_plan(path).prediction.feasible
    option, pool = re.search(r"(--memory) (gpu:0=[0-9]+MiB)", result.stderr).groups()
    assert place(*args, option, pool).exit_code == 0
    assert place(*args, "--memory", "gpu:0=8MiB").exit_code == 3


def test_a_search_without_a_fit_exits_3(fork8):
    """The best that was seen is printed; the message says what it lacks."""
    result = place("plan", fork8, "--machine", "k40x2", "--evaluations", "3", "--memory", "*=4MiB", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["feasible"] is False
    assert "would" in result.stderr or "fit with --memory" in result.stderr


def test_what_cannot_run_has_no_value(tmp_path):
    """An infinite value is null in JSON, and the reason is in words."""
    text = machine_toml(preset("k40x2")).replace('host = "cpu:0"\n', "")
    apart = tmp_path / "apart.toml"
    apart.write_text(text)
    ops = [Operation("a", flops=1, outputs=(Tensor(4),)), Operation("b", flops=1, inputs=["a"])]
    graph = tmp_path / "ab.json"
    write_graph(build_graph("ab", ops), graph)
    devices = tmp_path / "devices.json"
    devices.write_text('["gpu:0", "gpu:1"]')
    result = place("simulate", graph, "--machine", apart, "--placement", devices, "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (found["value_s"], found["feasible"], found["reason"]) == (None, False, "route")
    assert "no route" in found["detail"]
    assert "no route" in result.stderr
    assert "cannot run: " in place("simulate", graph, "--machine", apart, "--placement", devices).stdout
    checked = place("machine", "check", apart)
    assert checked.exit_code == 0
    assert "no route leads from gpu:0 to gpu:1" in checked.stderr


# ---- simulate ---------------------------------------------------------------------------------------


def test_the_critical_path_is_listed(fork8):
    """Its parts follow each other without a break, from the start of the step to its end."""
    args = ("simulate", fork8, "--machine", "k40x2", "--placement", "single:gpu:0")
    found = answer(*args, "--critical-path")
    path = found["critical_path"]
    assert [link["name"] for link in path] == ["source", *(f"arm{i}" for i in range(8)), "join"]
    assert path[0]["start_s"] == 0
    assert sum(link["seconds"] for link in path) == pytest.approx(found["value_s"])
    assert {link["wait"] for link in path[1:]} <= {"input", "device"}
    assert "critical_path" not in answer(*args)
    assert "arm7" in place(*args, "--critical-path").stdout
    assert "no critical path" in place(*args, "--critical-path", "--objective", "throughput").stderr


# ---- machine ----------------------------------------------------------------------------------------


def test_machine_list_has_every_preset():
    """A line for each, and JSON with devices and memory."""
    result = place("machine", "list")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == list(presets())
    found = json.loads(place("machine", "list", "--json").stdout)
    assert [entry["name"] for entry in found] == list(presets())
    assert found[-1]["devices"]["gpu:0"] == "v100-sxm2-32gb"


def test_machine_show_gives_all_three_forms(tmp_path):
    """Tables, JSON, and a file that reads back."""
    shown = place("machine", "show", "k40x2").stdout
    assert "tesla-k40" in shown
    assert re.search(r"gpu:0 +10\.04 +- +10\.04", shown)
    record = json.loads(place("machine", "show", "k40x2", "--json").stdout)
    assert {"source": "gpu:0", "target": "gpu:1", "channels": ["gpu:0>cpu:0", "cpu:0>gpu:1"], "latency_s": 6e-05,
            "bytes_per_s": 10.04e9} in record["routes"]  # fmt: skip
    path = tmp_path / "mine.toml"
    path.write_text(place("machine", "show", "k40x2", "--toml").stdout)
    assert pw.machine(str(path)) == preset("k40x2")
    assert place("machine", "check", path).stdout.startswith(f"{path} is fine: k40x2, 3 devices")
    assert place("machine", "show", "k40x2", "--toml", "--json").exit_code == 2
    assert place("machine", "show", "k41").exit_code == 2


def test_machine_check_names_the_fault(tmp_path):
    """Exit code 2 and the place in the file."""
    path = tmp_path / "bad.toml"
    path.write_text('schema = "placewright.machine/1"\nname = "x"\ndevice = []\n')
    result = place("machine", "check", path)
    assert result.exit_code == 2
    assert str(path) in result.stderr
    assert "device" in result.stderr


# ---- the program as a whole -------------------------------------------------------------------------


@pytest.mark.parametrize("command", [[], ["plan"], ["compare"], ["simulate"], ["machine"], ["machine", "show"]])
def test_help(command):
    """Every command explains itself."""
    result = place(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: {' '.join(['cli', *command])}")


def test_version():
    """The installed one."""
    run = start("--version")
    assert re.fullmatch(r"placewright, version \d+\.\d+\.\d+\S*\n", run.communicate()[0])


def test_a_defect_is_reported_without_a_traceback(fork8, monkeypatch):
    """An unexpected exception is a short message and exit code 1; --traceback shows where it came from."""

    def broken(*_):
        raise RuntimeError("left is right")

    monkeypatch.setattr(setup, "set_up", broken)
    result = place("plan", fork8)
    assert result.exit_code == 1
    assert "unexpected RuntimeError: left is right" in result.stderr
    assert "report" in result.stderr
    shown = CliRunner().invoke(cli, ["plan", str(fork8), "--traceback"])
    assert "Traceback (most recent call last)" in shown.output
    monkeypatch.setenv("PLACEWRIGHT_TRACEBACK", "1")
    assert "Traceback (most recent call last)" in CliRunner().invoke(cli, ["plan", str(fork8)]).output


def test_a_closed_pipe_is_quiet():
    """Whoever stops reading gets no complaint on stderr."""
    run = start("machine", "show", "h100x8", "--json")
    run.stdout.close()
    with run.stderr:
        assert run.stderr.read() == ""
    assert run.wait() == 1


def read_all(terminal):
    """What a program wrote to a terminal until it ended."""
    seen = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            part = b""
        if not part:
            os.close(terminal)
            return seen
        seen += part


@pytest.mark.parametrize("plain", [False, True])
def test_colour_on_a_terminal_unless_no_color(plain):
    """A terminal gets a coloured table; NO_COLOR takes the colour away and leaves the table."""
    ours, theirs = pty.openpty()
    changes = {"NO_COLOR": "1"} if plain else {}
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm-256color", "COLUMNS": "150"}
    command = [sys.executable, "-m", "placewright", "machine", "list"]
    with subprocess.Popen(command, stdout=theirs, env=env | changes) as run:
        os.close(theirs)
        seen = read_all(ours)
        assert run.wait() == 0
    assert (b"36m" in seen) is not plain
    assert "─".encode() in seen
    assert b"k40x2" in seen


def test_a_table_too_wide_for_the_terminal_breaks_no_cell(fork8):
    """On a narrow terminal `compare` shows the fullest pool instead of all, and no figure is split over lines."""
    ours, theirs = pty.openpty()
    env = dict(os.environ) | {"TERM": "xterm", "COLUMNS": "84"}
    command = [sys.executable, "-m", "placewright", "compare", str(fork8), "--machine", "k40x2", "--quiet"]
    command += ["--methods", "single:cpu:0,round-robin"]
    with subprocess.Popen(command, stdout=theirs, env=env) as run:
        os.close(theirs)
        seen = read_all(ours)
        assert run.wait() == 0
    lines = seen.decode().splitlines()
    assert any("fullest pool" in line for line in lines)
    assert sum("round-robin" in line for line in lines) == 1
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in lines) <= 84


def test_separate_is_no_wrong_usage():
    """A constraint that keeps operations apart is planned with; methods that cannot keep it are left out."""
    graph = Path(__file__).parents[1] / "examples" / "two_towers.json.gz"
    apart = ["--machine", "k40x2", "--constraint", "separate:image.pixels,text.tokens", "--evaluations", "50"]
    assert answer("plan", graph, *apart, "--method", "random")["feasible"]
    result = place("compare", graph, *apart, "--methods", "single:gpu:0,random,annealing,heft,auto", "--json")
    assert result.exit_code == 0
    methods = [entry["method"] for entry in json.loads(result.stdout)]
    assert sorted(methods) == ["annealing", "auto", "heft", "random"]
    assert "single:gpu:0 left out" in result.stderr


def test_no_command_shows_the_help():
    """The bare command shows its help once, with the exit code of wrong usage."""
    result = place()
    assert result.exit_code == 2
    assert result.stderr.count("Usage:") == 1
    assert "error:" not in result.stderr


def test_a_plan_can_be_written_to_a_pipe(fork8):
    """`-o` with a device that is a pipe writes the plan into it."""
    run = start("plan", fork8, "--machine", "k40x2", "--method", "round-robin", "--json", "-o", "/dev/stderr")
    err = run.communicate()[1]
    assert run.returncode == 0, err
    assert '"schema": "placewright.plan/1"' in err


def test_no_colour_off_a_terminal():
    """Piped output has no escape sequences."""
    run = start("machine", "list", TERM="xterm-256color")
    assert "\x1b" not in run.communicate()[0]


# ---- the workloads of Tarnawski et al. --------------------------------------------------------------

SHARED = Path(__file__).parents[2] / "shared" / "workloads" / "tarnawski2020" / "throughput"
shared = [
    pytest.mark.shared,
    pytest.mark.skipif(not SHARED.is_dir(), reason=f"the profiled workloads are not in {SHARED}"),
]
PUBLISHED = [  # workload, one accelerator, the human expert; milliseconds
    ("layer_bert24_inference", 92.406, 20.084),
    ("layer_bert24_training", 217.813, 49.405),
    ("layer_gnmt_inference", 182.563, 46.208),
    ("layer_inceptionv3_inference", 310.969, 102.482),
    ("layer_resnet50_inference", 201.450, 43.918),
    ("op_bert_l-3_inference", 49.353, None),
    ("op_bert_l-3_training", 122.987, None),
    ("op_bert_l-6_inference", 77.462, None),
    ("op_resnet50_inference", 325.132, None),
]


@pytest.mark.parametrize(
    ("name", "placement", "value_ms"),
    [
        pytest.param(name, placement, value, marks=shared, id=f"{name}-{placement}")
        for name, single, expert in PUBLISHED
        for placement, value in (("single:gpu:0", single), ("expert", expert))
        if value is not None
    ],
)
def test_published_figures(name, placement, value_ms):
    """Figures of the paper's accelerators and experts; one accelerator has not memory enough for layer_resnet50."""
    result = place("simulate", SHARED / f"{name}.json", "--placement", placement, "--json")
    found = json.loads(result.stdout)
    fits = (name, placement) != ("layer_resnet50_inference", "single:gpu:0")
    assert result.exit_code == (0 if fits else 3)
    assert found["objective"] == "max_load"
    assert found["value_s"] * 1000 == pytest.approx(value_ms, abs=6e-4)
    assert found["measured_share"] == 1
