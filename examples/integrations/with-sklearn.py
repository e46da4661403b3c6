"""Classify short reviews with ELMo sentence vectors in a scikit-learn pipeline."""

from __future__ import annotations

from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from elmokit.integrations.sklearn import ElmoVectorizer

GOOD = [
    "A lovely film with a warm heart.",
    "Funny, clever and beautifully acted.",
    "One of the best dramas of the year.",
    "I enjoyed every minute of it.",
    "The music is a delight.",
    "A charming and touching story.",
]
BAD = [
    "A dull film without a story.",
    "Boring, noisy and badly acted.",
    "One of the worst comedies of the year.",
    "I wanted my money back.",
    "The dialogue is a mess.",
    "A tedious and lifeless sequel.",
]

pipeline = make_pipeline(ElmoVectorizer(pooling="mean"), StandardScaler(), LogisticRegression(C=0.01))
search = GridSearchCV(pipeline, {"elmovectorizer__layers": [0, "top", "all"]}, cv=3)
search.fit(GOOD + BAD, ["good"] * len(GOOD) + ["bad"] * len(BAD))

print("best layers:", search.best_params_["elmovectorizer__layers"])
for review in ("A touching and funny drama.", "A noisy mess of a film."):
    print(review, "->", search.predict([review])[0])
