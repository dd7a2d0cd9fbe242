"""Looking inside a model without touching it: attention weights by a side call, and exact measures of every head."""

from regard.attention.masks.picture import draw_mask, mask_svg
from regard.look.capture.observe import Attention, attentions, dense_weights, evaluation_mode
from regard.look.statistics.measures import Head, describe, heads
from regard.look.views.reading import Passage, passage
