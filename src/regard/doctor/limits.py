"""From which number on something is wrong, each with its reason. A healthy run must stay clear of all of them."""

#: The norm of a whole gradient, before clipping. A loss that is a mean over tokens has gradients of at most √2 at each
#: token's logits (softmax minus one-hot), and layers whose gain is near 1 (Glorot and Bengio 2010) pass on about that:
#: healthy runs stay below 2. Orders of magnitude more is what Pascanu et al. (2013, sec. 2.1) call exploding.
NORM = 20.0
#: And one that grows: so many times what it was after warm-up, and to so much at least.
CLIMBS, CLIMBED = 4.0, 10.0
#: A layer's gradient against that of the same kind of layer nearer to the loss: gains multiply (Pascanu et al. 2013,
#: eq. 5), so that a factor of 50 between neighbours is not passed on but made there; healthy runs have up to 6.
GROWS = 50.0
#: The same in the other direction: a layer that gets a fiftieth of what its sisters get learns little beside them.
SHRINKS = 0.02
#: A matrix's gradient against others of its own part, by the number: these have the same inputs or feed each other.
SILENT = 1e-4
#: Entropy of a head as a share of the greatest possible one. Training becomes unstable as that of all heads of a layer
#: goes to zero (Zhai et al. 2023, fig. 1); single sharp heads (previous token, induction) are what one hopes for.
COLLAPSED = 0.15
#: And from here to 1 it looks everywhere alike. With scores of deviation s the share is 1 - s²/(2 log n): this is
#: s = 0.007 for n = 100, a seventh of what small first weights (0.02, GPT-2) give before anything is learned.
UNIFORM = 1 - 5e-6
#: Of a layer's units, those that never change on thousands of tokens. Trained ReLU networks do well with half of them,
#: in early layers even 70 % (Voita et al. 2023, sec. 3), not with fewer.
DEAD = 0.72
#: An expert's share of tokens over its fair one; Fedus et al. (2022, sec. 2.2) call experts balanced within a factor 2.
#: Its probability over a fair one besides: a twentieth is a logit of 3 below the others'.
UNUSED, UNLIKELY = 0.02, 0.05
#: Of all tokens, the share that goes through one expert of many, and at least so many times its fair share; or a
#: smaller one, if that is many times the fair one.
OVERLOADED, UNFAIR = 0.8, 1.5
CROWDED, MANYFOLD = 0.5, 4.0
#: How far one loss is above all of those just before: so many times their spread (a normal deviate of 6 comes once in
#: a thousand million steps), and so much in nats, a quarter being 28 % in perplexity.
SPIKE_SPREADS, SPIKE_NATS, SPIKE_WINDOW = 6.0, 0.25, 10
#: An update over the weights it changes. About 1e-3 is a good one; with 0.05, twenty replace a weight altogether. Both
#: are asked only beside a loss that does badly: matrices that begin small have large ones in a healthy run.
MOVES_MUCH, MOVES_LITTLE = 0.05, 1e-3
#: The highest factor of a schedule in a run, and the mean one: below, the rate that was asked for is not the run's.
COLD, COOL = 0.5, 0.05
#: Nats: a loss that is so far above that of untrained weights, or by so little below it after `SETTLED` full steps.
WORSE, BARELY, SETTLED = 0.1, 0.1, 30
#: Nats that a loss must have fallen in the second half of a run whose updates are large to the end.
STUCK = 0.02
#: Nats of the validation loss above its lowest, while the training loss went on falling, and between the two.
RISEN, GAP = 0.1, 0.3
#: Of a step's time, the share spent waiting for its batches: with half of it the device is idle every other moment.
STARVED = 0.4
#: Of the memory that there is: allocators need a few percent of slack for blocks of unequal size.
FULL, ROOMY = 0.92, 0.8
#: Of targets, the share that stands in the inputs at the same few places before: text repeats a letter in ten at most.
LEAKED = 0.6
#: Of the rows of a batch, those that came before in the same half of an epoch.
REPEATED = 0.3
#: Of runs of 50 tokens (Lee et al. 2022, sec. 4), the share that stands in the training text too, or twice in it. They
#: find some 3 % in well-known sets.
RUN, KNOWN, TWICE = 50, 0.1, 0.3
#: Of an output's size, what a change elsewhere must move for it to be more than rounding in float32.
MOVED = 1e-4
#: Of training time, what the doctor may take. Four looks are taken whatever they cost: short runs need them most.
SHARE = 0.015
