"""Autograd nodes that remember where their forward was called.

In backward nothing on the stack tells whose node runs. So each node is told, as it is made, the
module and the user's line that made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from forensics.replay.tracing.call_site import CallSite, Parts, call_site
from forensics.replay.tracing.tensor_stats import float_tensors

_SITE = "forensics_call_site"
"""Key of the node's own metadata."""
_EDITED = "modified by an inplace operation"
"""How autograd says that a value which backward needs was changed since the forward."""


@contextmanager
def marking_nodes(
    parts: Parts, roots: list[Tensor], edited: list[tuple[str, CallSite]]
) -> Iterator[None]:
    """Tell every node that is made while the context lasts.

    Args:
        parts: who is who.
        roots: what ``backward()`` is called on is appended, detached.
        edited: where ``backward()`` refuses a value that was changed in place, the node that needs
            it is appended, with the site of its forward.
    """
    with _custom_functions(parts), _Functions(parts, roots, edited):
        yield


def node_name(node: Any) -> str:
    """``ExpBackward0``: the name of an autograd node without its namespace."""
    return str(node.name()).rsplit("::", 1)[-1]


def site_of_node(node: Any) -> CallSite | None:
    """Where the forward of an autograd node was called, if that was under a trace."""
    site: CallSite | None = _metadata(node).get(_SITE)
    return site


class _Functions(TorchFunctionMode):
    """Above autograd: sees every function of torch that is called."""

    def __init__(
        self, parts: Parts, roots: list[Tensor], edited: list[tuple[str, CallSite]]
    ) -> None:
        super().__init__()
        self._parts, self._roots, self._edited = parts, roots, edited

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        if func is Tensor.backward:
            self._roots.append(args[0].detach())
        try:
            out = func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if func is Tensor.backward and _EDITED in str(error):
                self._edited += _edited_behind(args[0].grad_fn)
            raise
        _tell(out, self._parts)
        return out


@contextmanager
def _custom_functions(parts: Parts) -> Iterator[None]:
    """The nodes of custom autograd functions, too: no mode sees ``Function.apply``."""
    own = vars(Function)["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        out = own.__get__(None, cls)(*args, **kwargs)
        _tell(out, parts)
        return out

    patched: Any = Function
    patched.apply = classmethod(apply)
    try:
        yield
    finally:
        patched.apply = own


def _tell(out: Any, parts: Parts) -> None:
    """Tell the nodes of a call's results where the caller's caller is."""
    site: CallSite | None = None
    for tensor in float_tensors(out):
        if tensor.grad_fn is not None and _SITE not in _metadata(tensor.grad_fn):
            site = site or call_site(parts, depth=3)
            _mark(tensor.grad_fn, site)


def _mark(node: Any, site: CallSite) -> None:
    """Mark a node and the unmarked ones behind it: one function may make several nodes."""
    todo = [node]
    while todo:
        here = todo.pop()
        if here is None or _SITE in here.metadata:
            continue
        here.metadata[_SITE] = site
        todo += [following for following, _ in here.next_functions]


def _edited_behind(root: Any) -> Iterator[tuple[str, CallSite]]:
    """The first node of a graph that kept a value which was changed since, if its site is known."""
    todo, seen = [root], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        site = site_of_node(node)
        if site is not None and _keeps_an_edited_value(node):
            yield node_name(node), site
            return
        todo += [following for following, _ in node.next_functions]


def _keeps_an_edited_value(node: Any) -> bool:
    """Does a node refuse to give out what it kept? Those that ran already have let go of it."""
    for name in dir(node):
        if not name.startswith("_saved_") and name != "saved_tensors":
            continue
        try:
            getattr(node, name)
        except RuntimeError as error:
            if _EDITED in str(error):
                return True
    return False


def _metadata(node: Any) -> dict[Any, Any]:
    """The dict that belongs to an autograd node (the stubs take it for a method)."""
    metadata: dict[Any, Any] = node.metadata
    return metadata
