"""The language: types, operations, graphs and their text.

Knows nothing of tracing, transforms or devices.
"""

from ge2.ir.graph import Atom as Atom
from ge2.ir.graph import Eqn as Eqn
from ge2.ir.graph import Graph as Graph
from ge2.ir.graph import Literal as Literal
from ge2.ir.graph import Var as Var
from ge2.ir.graph import lines_of as lines_of
from ge2.ir.graph import read as read
from ge2.ir.graph import rename as rename
from ge2.ir.graph import renamed as renamed
from ge2.ir.graph import verify as verify
from ge2.ir.graph import without_dead_code as without_dead_code
from ge2.ir.op import ON_GPU as ON_GPU
from ge2.ir.op import ArrayType as ArrayType
from ge2.ir.op import Axes as Axes
from ge2.ir.op import Axis as Axis
from ge2.ir.op import Batched as Batched
from ge2.ir.op import CostClass as CostClass
from ge2.ir.op import Cotangents as Cotangents
from ge2.ir.op import Derive as Derive
from ge2.ir.op import Dims as Dims
from ge2.ir.op import Evaluate as Evaluate
from ge2.ir.op import Flags as Flags
from ge2.ir.op import GraphOp as GraphOp
from ge2.ir.op import Interpreter as Interpreter
from ge2.ir.op import Lowering as Lowering
from ge2.ir.op import Number as Number
from ge2.ir.op import Op as Op
from ge2.ir.op import Pushed as Pushed
from ge2.ir.op import Reversing as Reversing
from ge2.ir.op import ShapeDtypeStruct as ShapeDtypeStruct
from ge2.ir.op import Value as Value
from ge2.ir.op import Values as Values
from ge2.ir.op import current as current
from ge2.ir.op import has_effect as has_effect
from ge2.ir.op import interpreting as interpreting
from ge2.ir.op import is_traced as is_traced
from ge2.ir.op import type_of as type_of
from ge2.ir.text import Names as Names
from ge2.ir.text import op_text as op_text
from ge2.ir.text import parse as parse
from ge2.ir.text import write as write
