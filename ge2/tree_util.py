"""Classes as containers of arrays, key paths, and the names of `jax.tree_util`.

Nodes are dict, OrderedDict, defaultdict, list, tuple, namedtuple, None (no leaf), dataclass
instances (fields made with `field(metadata={"static": True})` are static) and instances of classes
registered here. All else is a leaf, subclasses of list, dict and tuple among them.
"""

from __future__ import annotations

from typing import NoReturn

from ge2.base.errors import lacking
from ge2.base.pytree import DictKey as DictKey
from ge2.base.pytree import FlattenedIndexKey as FlattenedIndexKey
from ge2.base.pytree import GetAttrKey as GetAttrKey
from ge2.base.pytree import KeyPath as KeyPath
from ge2.base.pytree import Partial as Partial
from ge2.base.pytree import SequenceKey as SequenceKey
from ge2.base.pytree import Structure as PyTreeDef
from ge2.base.pytree import keystr as keystr
from ge2.base.pytree import register_dataclass as register_dataclass
from ge2.base.pytree import register_leaf as register_leaf
from ge2.base.pytree import register_pytree_node as register_pytree_node
from ge2.base.pytree import register_pytree_node_class as register_pytree_node_class
from ge2.base.pytree import register_pytree_with_keys as register_pytree_with_keys
from ge2.base.tracebacks import hides
from ge2.tree import all as tree_all
from ge2.tree import flatten as tree_flatten
from ge2.tree import flatten_with_path as tree_flatten_with_path
from ge2.tree import leaves as tree_leaves
from ge2.tree import leaves_with_path as tree_leaves_with_path
from ge2.tree import map as tree_map
from ge2.tree import map_with_path as tree_map_with_path
from ge2.tree import reduce as tree_reduce
from ge2.tree import structure as tree_structure
from ge2.tree import transpose as tree_transpose
from ge2.tree import unflatten as tree_unflatten

__all__ = [
    "DictKey",
    "FlattenedIndexKey",
    "GetAttrKey",
    "KeyPath",
    "Partial",
    "PyTreeDef",
    "SequenceKey",
    "keystr",
    "register_dataclass",
    "register_leaf",
    "register_pytree_node",
    "register_pytree_node_class",
    "register_pytree_with_keys",
    "tree_all",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_leaves_with_path",
    "tree_map",
    "tree_map_with_path",
    "tree_reduce",
    "tree_structure",
    "tree_transpose",
    "tree_unflatten",
]


def __dir__() -> list[str]:
    return __all__


@hides
def __getattr__(name: str) -> NoReturn:
    raise AttributeError(lacking(__name__, name, __all__))
