"""Small dialogues with a rule to learn, and a tiny random BERT: shared by tests of gates on turns."""

from kbtrain.records import Entity, Snippet, TurnExample, Utterance

PLACES = ("museum", "park", "castle", "garden")


def turn(i: int, split: str = "train", **changes) -> TurnExample:
    """The i-th turn: the user asks about a sight (then the turn is enriched) or for a ticket, after i % 3 exchanges."""
    asks = i % 4 == 0
    context = []
    for j in range(i % 3):
        context += [
            Utterance("USER", f"Find me a bus for {j + 1} people please", ("Buses_1",), ("INFORM",)),
            Utterance("SYSTEM", "Where do you want to go?", ("Buses_1",), ("REQUEST",)),
        ]
    last = f"Tell me about the {PLACES[i // 4 % 4]}" if asks else f"Book {i % 7} tickets"
    service = "Travel_1" if asks else "Events_2"
    context.append(Utterance("USER", last, (service,), ("INFORM_INTENT",), (Entity(last.split()[-1], "name", "sgd"),)))
    made = {
        "id": f"{split}{i}:{len(context)}", "dialogue_id": f"{split}{i}", "split": split, "turn": len(context),
        "context": tuple(context), "services": tuple(dict.fromkeys(s for u in context for s in u.services)),
        "label": asks, "response": "It is lovely." if asks else "Done.",
        "response_acts": ("OFFER",) if asks else ("NOTIFY_SUCCESS",), "position": 0.5,
    }  # fmt: skip
    return TurnExample(**{**made, **changes})


def snippets(i: int, split: str = "train") -> list[Snippet]:
    """Four snippets of the i-th turn's dialogue, one a place."""
    name = f"{split}{i}"
    return [Snippet(f"{name}/{n}", name, place, f"The {place} opens at {n + 8}.") for n, place in enumerate(PLACES)]


def words_tokenizer():
    """WordPiece over the words above, with BERT's special tokens."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    texts = [u.text for i in range(48) for u in turn(i).context] + [s.text for s in snippets(0)]
    texts += ["turn user system travel events buses opens lovely it is done : . , 0 1 2 3 4 5 6 7 8 9 what of place"]
    words = sorted({w for text in texts for w in text.lower().replace("?", " ? ").replace(".", " . ").split()})
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words]
    made = Tokenizer(models.WordPiece({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def bert_folder(path):
    """A folder as a user would name it: two layers, 16 wide, no classifier."""
    import torch
    from transformers import BertConfig, BertModel

    tokenizer = words_tokenizer()
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=128, initializer_range=0.2, pad_token_id=0,
    )  # fmt: skip
    BertModel(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path
