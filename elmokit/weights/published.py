"""The models that were published under a name, and where.

Not one of these addresses has been tried by this project: every row is UNVERIFIED in that sense, and ``read_on`` says
where its address was read (stored copies of those pages, 2018 to 2022). Several were reported dead since.
Sizes are those of the files in MB: reported where ``read_on`` says so, else worked out from the number of parameters,
four bytes each. The checksum of a file is remembered when it is first downloaded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ALLENNLP = "https://s3-us-west-2.amazonaws.com/allennlp/models/elmo"
_ALLENNLP_LATER = "https://allennlp.s3.amazonaws.com/models/elmo"  # the same bucket, as AllenNLP 2 writes it
_ELMO_PAGE = "allennlp.org/elmo"
_NLPL = "http://vectors.nlpl.eu/repository"
_DEEPPAVLOV = "http://files.deeppavlov.ai/deeppavlov_data"
_DROPBOX = "https://www.dropbox.com/s"
_HUB = "https://huggingface.co/lysandre/elmo-2x4096_512_2048cnn_2xhighway/resolve/main"
_GERMAN = "https://github.com/t-systems-on-site-services-gmbh/german-elmo-model/releases/download/files_1"
_JAPANESE = "https://exawizardsallenlp.blob.core.windows.net/data"
_BASQUE = "https://schweter.eu/cloud/eu-elmo"
_SEQVEC = "https://rostlab.org/~deepppi"


@dataclass(frozen=True)
class Place:
    """Where a model's files are, or were."""

    weights: str
    """The address of the HDF5 file, or of an archive with everything in it."""
    options: str | None = None
    """The address of the options file; None where an archive holds it."""


@dataclass(frozen=True)
class Published:
    """A model that was published under a name."""

    name: str
    about: str
    places: tuple[Place, ...]
    """The first is the publisher's own; then mirrors."""
    read_on: str
    n_megabytes: int | None = None
    """Of the weights; None where nothing says it."""
    also: tuple[str, ...] = ()
    """Other names for the same."""

    @property
    def by_hand(self) -> str:
        """What someone who downloads it by hand needs."""
        place = self.places[0]
        size = "" if self.n_megabytes is None else f" ({self.n_megabytes} MB)"
        if place.options is None:
            return f"the archive {place.weights}{size}"
        return f"the weights {place.weights}{size} and the options {place.options}"


def _english(folder: str, root: str = _ALLENNLP) -> Place:
    stem = f"{root}/{folder}/elmo_{folder}"
    return Place(f"{stem}_weights.hdf5", f"{stem}_options.json")


def _pair(root: str, weights: str = "weights.hdf5", options: str = "options.json") -> Place:
    return Place(f"{root}/{weights}", f"{root}/{options}")


def _wikipedia(language: str, code: str, key: str) -> Published:
    """Schuster et al. 2019: one ELMo per language, made to be aligned across languages."""
    return Published(
        f"wikipedia-{code}",
        f"{language} Wikipedia, Schuster et al. 2019",
        (Place(f"{_DROPBOX}/{key}/{code}_weights.hdf5?dl=1", f"{_DROPBOX}/ypjuzlf7kj957g3/options262.json?dl=1"),),
        "github.com/TalSchuster/CrossLingualContextualEmb",
    )


_SMALL, _MEDIUM = "2x1024_128_2048cnn_1xhighway", "2x2048_256_2048cnn_1xhighway"
_ORIGINAL, _LARGE = "2x4096_512_2048cnn_2xhighway", "2x4096_512_2048cnn_2xhighway_5.5B"

TABLE: tuple[Published, ...] = (
    Published(
        "small",
        "English, 1 Billion Word Benchmark, 13.6 M parameters",
        (_english(_SMALL), _english(_SMALL, _ALLENNLP_LATER)),
        _ELMO_PAGE,
        54,
    ),
    Published(
        "medium",
        "English, 1 Billion Word Benchmark, 28.0 M parameters",
        (_english(_MEDIUM), _english(_MEDIUM, _ALLENNLP_LATER)),
        _ELMO_PAGE,
        112,
    ),
    Published(
        "original",
        "English, 1 Billion Word Benchmark, 93.6 M parameters",
        (_english(_ORIGINAL), _english(_ORIGINAL, _ALLENNLP_LATER), _pair(_HUB)),
        f"{_ELMO_PAGE}; the mirror and the size on its page at huggingface.co",
        374,
    ),
    Published(
        "original-5.5b",
        "English, Wikipedia and WMT news of 2008 to 2012 (5.5 billion tokens), 93.6 M parameters",
        (_english(_LARGE), _english(_LARGE, _ALLENNLP_LATER)),
        _ELMO_PAGE,
        374,
        ("5.5b", "original5.5b", "large"),
    ),
    Published(
        "pubmed",
        "English, PubMed",
        (
            _pair(
                f"{_ALLENNLP}/contributed/pubmed",
                "elmo_2x4096_512_2048cnn_2xhighway_weights_PubMed_only.hdf5",
                "elmo_2x4096_512_2048cnn_2xhighway_options.json",
            ),
        ),
        _ELMO_PAGE,
        374,
    ),
    Published(
        "portuguese",
        "Portuguese, Wikipedia; Federal University of Goiás",
        (
            _pair(f"{_ALLENNLP}/contributed/pt/wikipedia", "elmo_pt_weights.hdf5"),
            _pair(f"{_ALLENNLP}/contributed/pt", "elmo_pt_weights.hdf5", "elmo_pt_options.json"),
        ),
        f"{_ELMO_PAGE}; the second place, which came first in time, in flair",
        None,
        ("pt", "portuguese-wikipedia"),
    ),
    Published(
        "portuguese-brwac",
        "Portuguese, brWaC; Federal University of Goiás",
        (_pair(f"{_ALLENNLP}/contributed/pt/brwac", "elmo_pt_weights_dgx1.hdf5"),),
        _ELMO_PAGE,
    ),
    Published("japanese", "Japanese; ExaWizards", (_pair(_JAPANESE),), _ELMO_PAGE, None, ("ja",)),
    Published(
        "german",
        "German, Wikipedia with its talk pages; Philip May and T-Systems onsite",
        (_pair(_GERMAN),),
        "github.com/t-systems-on-site-services-gmbh/german-elmo-model issue 2",
        374,
        ("de",),
    ),
    Published(
        "basque",
        "Basque, Wikipedia, OPUS and Leipzig corpora; Stefan Schweter",
        (_pair(_BASQUE),),
        "github.com/stefan-it/plur",
        None,
        ("eu",),
    ),
    Published(
        "seqvec",
        "proteins, UniRef50; Heinzinger et al. 2019",
        (
            Place(f"{_SEQVEC}/seqvec.zip"),
            _pair(f"{_SEQVEC}/embedding_repo/embedding_models/seqvec"),
            Place("https://lbs.cent.uw.edu.pl/static/files/seqvec.zip"),
        ),
        "github.com/mheinzinger/SeqVec; the other places in scripts that used them",
        360,
    ),
    _wikipedia("English", "en", "1h62kc1qdcuyy2u"),
    _wikipedia("Spanish", "es", "ygfjm7zmufl5gu2"),
    _wikipedia("French", "fr", "mm64goxb8wbawhj"),
    _wikipedia("Italian", "it", "owfou7coi04dyxf"),
    _wikipedia("Portuguese", "pt", "ul82jsal1khfw5b"),
    _wikipedia("Swedish", "sv", "boptz21zrs4h3nw"),
    _wikipedia("German", "de", "2kbjnvb12htgqk8"),
    *(
        Published(
            f"russian-{name}",
            f"Russian {about}; DeepPavlov (a TF-Hub module)",
            (Place(f"{_DEEPPAVLOV}/{file}.tar.gz"),),
            "the documentation of DeepPavlov 0.17",
        )
        for name, about, file in (
            ("wiki", "Wikipedia", "elmo_ru-wiki_600k_steps"),
            ("news", "WMT news of 2011 to 2016", "elmo_ru-news_wmt11-16_1.5M_steps"),
            ("twitter", "Twitter, 2013 to 2018", "elmo_ru-twitter_2013-01_2018-04_600k_steps"),
        )
    ),
)
"""One row a model."""

_IN_NLPL_ORDER = """
arabic bulgarian catalan czech old-church-slavonic danish german greek english spanish estonian basque persian finnish
french irish galician ancient-greek hebrew hindi croatian hungarian indonesian italian japanese korean latin latvian
dutch norwegian-bokmaal norwegian-nynorsk polish portuguese romanian russian slovak slovene swedish turkish uyghur
ukrainian urdu vietnamese chinese
"""
MANY_LANGUAGES = {language: number for number, language in enumerate(_IN_NLPL_ORDER.split(), start=136)}
"""ELMoForManyLangs' languages, by their number in the NLPL repository."""

_NLPL_NUMBER = re.compile(r"^nlpl:([0-9]{1,6})$")


def names() -> list[str]:
    """Every name there is, ``nlpl:NUMBER`` apart."""
    own = [name for model in TABLE for name in (model.name, *model.also)]
    return own + [f"many-langs:{language}" for language in MANY_LANGUAGES]


def find(name: str) -> Published | None:
    """The model of a name, in upper or lower case; None where there is none.

    Beside the names in the table: ``many-langs:LANGUAGE`` for ELMoForManyLangs, and ``nlpl:NUMBER`` for any model of
    the NLPL repository (vectors.nlpl.eu), such as 210, 211, 217 and 218 for Norwegian.
    """
    name = name.lower()
    for model in TABLE:
        if name in (model.name, *model.also):
            return model
    if number := _NLPL_NUMBER.match(name):
        return _of_nlpl(name, int(number[1]), "see vectors.nlpl.eu")
    family, _, language = name.partition(":")
    if family == "many-langs" and language in MANY_LANGUAGES:
        return _of_nlpl(name, MANY_LANGUAGES[language], f"{language}, ELMoForManyLangs")
    return None


def _of_nlpl(name: str, number: int, about: str) -> Published:
    """Its first home was folder 11 for ELMoForManyLangs; everything stands in folder 20."""
    places = [Place(f"{_NLPL}/20/{number}.zip")]
    if number in MANY_LANGUAGES.values():
        places.append(Place(f"{_NLPL}/11/{number}.zip"))
    return Published(
        name, f"{about}, number {number} of the NLPL repository", tuple(places), "github.com/HIT-SCIR/ELMoForManyLangs"
    )
