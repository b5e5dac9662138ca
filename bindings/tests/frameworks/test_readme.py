"""What the README shows of trainers is taken from the examples that the tests run, line by line."""

import re
from pathlib import Path

import pytest
from training import EXAMPLES

README = (Path(__file__).parents[3] / "README.md").read_text()
SECTION = README.split("## With your trainer\n")[1].split("\n## ")[0]
SHOWN = dict(
    zip(("plain", "dcp", "lightning", "accelerated"), re.findall(r"```python\n(.*?)```", SECTION, re.S), strict=True)
)


@pytest.mark.parametrize("module", SHOWN)
def test_the_readme_shows_lines_of_the_example(module: str) -> None:
    lines = [line.strip() for line in (EXAMPLES / "trainers" / f"{module}.py").read_text().splitlines()]
    shown = [line.strip() for line in SHOWN[module].splitlines() if line.strip() != "..."]
    assert len(shown) > 4
    for line in shown:
        assert line in lines, f"{module}.py has no such line: {line}"
