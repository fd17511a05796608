"""Tracing: how a Python function becomes a graph."""

from ge2.ops.graphs.associative import TRACING
from ge2.trace.stage import ABSTRACT as ABSTRACT
from ge2.trace.stage import Input as Input
from ge2.trace.stage import bind as bind
from ge2.trace.stage import check as check
from ge2.trace.stage import cse as cse
from ge2.trace.stage import finish as finish
from ge2.trace.stage import is_long as is_long
from ge2.trace.stage import retrace as retrace
from ge2.trace.stage import stage as stage
from ge2.trace.stage import tidy as tidy
from ge2.trace.stage import title_of as title_of
from ge2.trace.tracer import Closed as Closed
from ge2.trace.tracer import Trace as Trace
from ge2.trace.tracer import Tracer as Tracer
from ge2.trace.tracer import check_type as check_type
from ge2.trace.tracer import is_traced as is_traced
from ge2.trace.tracer import run as run

TRACING[:] = [retrace]
