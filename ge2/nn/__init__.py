"""Neural networks as plain NumPy: functions of arrays, and modules that are pytrees of arrays.

>>> import numpy as np, ge2
>>> from ge2 import nn
>>> x, labels = np.eye(3, dtype=np.float32), np.arange(3)
>>> ge2.grad(lambda w: nn.cross_entropy(nn.relu(x @ w), labels))(np.eye(3, dtype=np.float32)).shape
(3, 3)
"""

from ge2.base.tracebacks import publish
from ge2.nn import initializers as initializers
from ge2.nn.functions import binary_cross_entropy as binary_cross_entropy
from ge2.nn.functions import cosine_loss as cosine_loss
from ge2.nn.functions import cosine_similarity as cosine_similarity
from ge2.nn.functions import cross_entropy as cross_entropy
from ge2.nn.functions import elu as elu
from ge2.nn.functions import gelu as gelu
from ge2.nn.functions import glu as glu
from ge2.nn.functions import hardswish as hardswish
from ge2.nn.functions import huber as huber
from ge2.nn.functions import kl_div as kl_div
from ge2.nn.functions import leaky_relu as leaky_relu
from ge2.nn.functions import log_softmax as log_softmax
from ge2.nn.functions import logsumexp as logsumexp
from ge2.nn.functions import mae as mae
from ge2.nn.functions import mish as mish
from ge2.nn.functions import mse as mse
from ge2.nn.functions import one_hot as one_hot
from ge2.nn.functions import relu as relu
from ge2.nn.functions import selu as selu
from ge2.nn.functions import sigmoid as sigmoid
from ge2.nn.functions import silu as silu
from ge2.nn.functions import softmax as softmax
from ge2.nn.functions import softplus as softplus
from ge2.nn.functions import tanh as tanh
from ge2.nn.functions import triplet_loss as triplet_loss
from ge2.nn.layers import MLP as MLP
from ge2.nn.layers import BatchNorm as BatchNorm
from ge2.nn.layers import Dropout as Dropout
from ge2.nn.layers import Embedding as Embedding
from ge2.nn.layers import GatedMLP as GatedMLP
from ge2.nn.layers import GroupNorm as GroupNorm
from ge2.nn.layers import LayerNorm as LayerNorm
from ge2.nn.layers import Linear as Linear
from ge2.nn.layers import MultiHeadAttention as MultiHeadAttention
from ge2.nn.layers import RMSNorm as RMSNorm
from ge2.nn.layers import Sequential as Sequential
from ge2.nn.layers import dropout as dropout
from ge2.nn.layers import group_norm as group_norm
from ge2.nn.layers import layer_norm as layer_norm
from ge2.nn.layers import rms_norm as rms_norm
from ge2.nn.module import GRU as GRU
from ge2.nn.module import LSTM as LSTM
from ge2.nn.module import RNN as RNN
from ge2.nn.module import Module as Module
from ge2.nn.module import attention as attention
from ge2.nn.module import dot_product_attention as dot_product_attention
from ge2.nn.module import state as state
from ge2.nn.module import static as static
from ge2.nn.module import summary as summary

publish(globals(), advise=True, modules=("initializers",))
