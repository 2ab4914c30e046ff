"""A cell as a state file notes it; nobody serves there."""

from dspark.client import Cell

CELL = Cell("127.0.0.1:9", "ab", "", "127.0.0.1:1", 0, "", "t", "d")
