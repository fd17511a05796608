"""The language: types, operations, graphs and their text.

Knows nothing of tracing, transforms or devices.
"""

from ge2.ir.graph import ON_GPU as ON_GPU
from ge2.ir.graph import Atom as Atom
from ge2.ir.graph import Axes as Axes
from ge2.ir.graph import Axis as Axis
from ge2.ir.graph import Batched as Batched
from ge2.ir.graph import CostClass as CostClass
from ge2.ir.graph import Cotangents as Cotangents
from ge2.ir.graph import Derive as Derive
from ge2.ir.graph import Eqn as Eqn
from ge2.ir.graph import Evaluate as Evaluate
from ge2.ir.graph import Flags as Flags
from ge2.ir.graph import Graph as Graph
from ge2.ir.graph import GraphOp as GraphOp
from ge2.ir.graph import Interpreter as Interpreter
from ge2.ir.graph import Literal as Literal
from ge2.ir.graph import Lowering as Lowering
from ge2.ir.graph import Op as Op
from ge2.ir.graph import Pushed as Pushed
from ge2.ir.graph import Reversing as Reversing
from ge2.ir.graph import Values as Values
from ge2.ir.graph import Var as Var
from ge2.ir.graph import anew as anew
from ge2.ir.graph import applied as applied
from ge2.ir.graph import current as current
from ge2.ir.graph import has_effect as has_effect
from ge2.ir.graph import interpreting as interpreting
from ge2.ir.graph import lines_of as lines_of
from ge2.ir.graph import makers_of as makers_of
from ge2.ir.graph import read as read
from ge2.ir.graph import rename as rename
from ge2.ir.graph import renamed as renamed
from ge2.ir.graph import verify as verify
from ge2.ir.graph import without_dead_code as without_dead_code
from ge2.ir.text import Names as Names
from ge2.ir.text import op_text as op_text
from ge2.ir.text import parse as parse
from ge2.ir.text import write as write
from ge2.ir.types import ArrayType as ArrayType
from ge2.ir.types import Dims as Dims
from ge2.ir.types import Number as Number
from ge2.ir.types import ShapeDtypeStruct as ShapeDtypeStruct
from ge2.ir.types import Value as Value
from ge2.ir.types import is_traced as is_traced
from ge2.ir.types import type_of as type_of
