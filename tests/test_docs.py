"""What the documents show works."""

import re
import subprocess
import sys
from pathlib import Path

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
