"""What an operation graph is drafted of: storages, the tensors in them, and operations in the making."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch.fx import Node

from placewright.operations import Operation, Tensor

Reference = tuple[str, int]
"""The name of an operation, and the number of one of its outputs."""


@dataclass(eq=False)
class Storage:
    """Bytes that tensors share: who made them, who wrote them last, and who has read that."""

    root: Reference
    bytes: int
    persistent: bool
    version: int = 0
    latest: Reference = ("", 0)
    readers: list[str] = field(default_factory=list)
    """Operations that have read the latest version."""
    all_readers: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.latest = self.root


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor of the traced graph: the tensor of the operation graph that it is, and the version it had then."""

    storage: Storage
    reference: Reference
    version: int

    def now(self) -> Reference:
        """Return what a reader depends on: this tensor, or whatever was written over its storage since."""
        return self.reference if self.storage.version == self.version else self.storage.latest


@dataclass(eq=False)
class Draft:
    """An operation in the making."""

    name: str
    kind: str
    phase: str
    scope: str
    node: Node | None = None
    flops: float = 0.0
    bytes_read: int = 0
    bytes_written: int = 0
    workspace_bytes: int = 0
    dtype: str = "float32"
    inputs: dict[Reference, None] = field(default_factory=dict)
    after: dict[str, None] = field(default_factory=dict)
    outputs: list[Tensor] = field(default_factory=list)
    recompute: bool = False

    def operation(self, outputs: set[Reference]) -> Operation:
        """Return it as a record for `build_graph`; what is in `outputs` lives to the end of the step."""
        made = tuple(
            Tensor(t.bytes, t.storage, t.in_place, (self.name, k) in outputs, shape=t.shape)
            for k, t in enumerate(self.outputs)
        )
        return Operation(
            name=self.name, kind=self.kind, phase=self.phase, scope=self.scope, flops=self.flops,
            bytes_read=self.bytes_read, bytes_written=self.bytes_written, workspace_bytes=self.workspace_bytes,
            dtype=self.dtype, inputs=tuple(self.inputs), after=tuple(self.after), outputs=made,
            recompute=self.recompute,
        )  # fmt: skip
