"""What the documents show works."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from placewright.cli import cli

ROOT = Path(__file__).parents[1]


def test_the_placer_in_the_guide_passes_its_contract(tmp_path):
    """The example of docs/adding-a-placer.md runs, and passes the contract that it shows."""
    text = (ROOT / "docs" / "adding-a-placer.md").read_text()
    (tmp_path / "test_guide.py").write_text(re.search(r"```python\n(.*?)```", text, re.S)[1])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_guide.py"], cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "7 passed" in done.stdout, done.stdout + done.stderr
    done = subprocess.run([sys.executable, "test_guide.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "640 evaluations" in done.stdout


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def code_blocks(page, language=""):
    """The code blocks of a page in a language."""
    parts = re.split(r"^```(.*)\n", page.read_text(), flags=re.M)  # text, language, block, language (none), text, ...
    return [parts[k + 1] for k in range(1, len(parts) - 1, 4) if parts[k] == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_to_exists(page):
    """Pages, examples and benchmarks by path, links between pages, and targets of make."""
    text = page.read_text()
    for path in re.findall(r"(?<![\w/.])(?:docs|examples|benchmarks|tests)/[\w/.-]*\w", text):
        if "/results/" not in path or path.endswith(".json"):
            assert (ROOT / path).exists(), path
    for link in re.findall(r"\]\(([^)#:]+)(?:#[\w-]+)?\)", text):
        assert (page.parent / link).exists(), link
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    shown = re.findall(r"`make ([a-z-]+)`", text) + re.findall(r"^make ([a-z-]+)", "".join(code_blocks(page)), re.M)
    assert set(shown) <= targets


def commands(page):
    """Every command line of ours that a page shows."""
    for block in code_blocks(page) + code_blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:\$ )?(?:\.venv/bin/)?placewright (.*)", line)
            if found:
                yield shlex.split(found[1], comments=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_a_page_shows_are_understood(page):
    """Commands, options and choices exist; nothing is run."""
    for name, *args in commands(page):
        command = cli.commands[name]
        group = isinstance(command, click.Group)
        (command.commands[args[0]] if group else command).make_context(name, args[group:])


def test_pages_show_commands():
    """The test above has something to look at."""
    assert len(list(commands(ROOT / "README.md"))) >= 5


def test_the_python_of_the_readme_runs(capsys):
    """From a module to the critical path of its placement."""
    (code,) = code_blocks(ROOT / "README.md", "python")
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "s, waited for:" in capsys.readouterr().out


@pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the pages show the operations of torch 2.13")
@pytest.mark.parametrize("page", ["README.md", "docs/capture.md"])
def test_what_capture_is_shown_to_print(page, monkeypatch, tmp_path):
    """Line by line, but for the seconds; the README leaves out the table of kinds."""
    monkeypatch.chdir(ROOT)
    block = next(block for block in code_blocks(ROOT / page) if "$ placewright capture examples/" in block)
    shown = block.splitlines()
    args = [str(tmp_path / "model.json.gz") if word == "model.json.gz" else word for word in shlex.split(shown[0])[2:]]
    printed = CliRunner().invoke(cli, args).stdout.splitlines()
    end = next((k for k, line in enumerate(shown) if line == "  ..."), len(shown))
    timeless = [re.sub(r"in [\d.]+ s$", "in some s", line) for line in printed]
    assert [re.sub(r"in [\d.]+ s$", "in some s", line) for line in shown[1:end]] == timeless[: end - 1]


def test_the_page_has_the_kept_run_of_measured_peaks(tmp_path):
    """The table of docs/memory.md is that of the kept run."""
    shutil.copy(ROOT / "docs" / "memory.md", tmp_path / "memory.md")
    script, kept = (
        ROOT / "benchmarks" / "device" / "peak_memory.py",
        ROOT / "benchmarks/device/results/peak_memory.json",
    )
    subprocess.run([sys.executable, script, "--page", kept, tmp_path / "memory.md"], check=True)
    assert (tmp_path / "memory.md").read_text() == (ROOT / "docs" / "memory.md").read_text()
