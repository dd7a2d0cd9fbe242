"""Kinships: 10,686 triples between 104 people of an Australian tribe in 25 terms (Kemp et al. 2006).

From the same package as `umls`, with its division into parts.
"""

from regard.data.origins.source import Source
from regard.data.sources.umls import pykeen

SOURCE = Source(
    name="kinships",
    title="Kinships: 10,686 triples between 104 people in 25 terms",
    license="MIT",
    terms="LICENSE of the package is MIT and does not mention the data; it cites Kemp et al. (2006)",
    file="kinships.tsv",
    sha256="8886111d68984a5e32bacfac2157f2470b0ff69eee639283bc0ea6dca1ed750a",
    size=329_459,
    origin=pykeen("kinships"),
    labels="links",
)
