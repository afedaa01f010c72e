"""Everyday English for a first calibration, when the user has given none: many registers, lengths and characters.

A calibration on texts like the real ones is better; `secformer calibrate FOLDER --data FILE` makes one.
"""

SENTENCES = (
    "Hello!",
    "Where is the nearest pharmacy?",
    "The committee will meet on Thursday at 9:30 a.m. in room 204.",
    "I can't believe how good this soup is; you have to give me the recipe.",
    "Revenue grew by 12.4% year over year, while operating costs fell to $3.1 million.",
    "Patients who received the treatment reported fewer headaches after six weeks.",
    "def mean(values): return sum(values) / len(values)",
    "The plaintiff argues that the contract was void from the beginning because of a mutual mistake.",
    "Rain is expected in the north tomorrow, with temperatures between 7 and 11 degrees.",
    "She opened the old wooden box, and a smell of cedar and dust filled the room.",
    "Please find attached the invoice no. 2024-117; payment is due within 30 days.",
    "In 1905 a young clerk in Bern published four papers that changed physics.",
    "A bird in the hand is worth two in the bush.",
    "Error 404: the page you requested could not be found on this server.",
    "The film is too long, badly lit and, in its last half hour, simply dull.",
    "What a wonderful evening, thank you so much for the invitation!!!",
    "The mitochondrion produces most of the chemical energy needed by the cell.",
    "Turn left after the bridge, then follow the river for about two kilometres.",
    "My account number is 00-4471-93 and my balance was wrong on the last statement.",
    "Not only did they arrive late, they also forgot the tickets.",
    "Supply chains, energy prices and interest rates remain the main risks for next year.",
    "Le train de nuit pour Vienne part du quai numéro huit.",
    "The quick brown fox jumps over the lazy dog.",
    "Is it safe to take ibuprofen together with this antibiotic?",
    "Shares of the chip maker fell sharply after it cut its forecast for the quarter.",
    "He said he would come; he did not; nobody was surprised.",
    "To install the package, create a virtual environment and run the command below.",
    "The treaty was signed by 27 countries and entered into force two years later.",
    "I love it.",
    "Although the experiment was repeated three times, the effect was never seen again.",
    "Add the flour little by little, stirring all the time, until the dough no longer sticks.",
    "Who wrote the symphony that was first performed in this hall in 1824?",
    "The accused denied all charges and asked to be represented by another lawyer.",
    "Broadband coverage in rural areas remains well below the national average.",
    "a b c d e f g 1 2 3 4 5 6 7 8 9 0 ? ! , . ; : ( ) [ ] { } / % & $ # @",
    "Children under twelve travel free of charge when accompanied by an adult.",
    "The defender lost the ball in midfield, and seconds later it was two to nil.",
    "Quantum computers promise speed for a few problems and little for most others.",
    "We regret to inform you that your application has not been successful this time.",
    "Sleep well, and call me when you get there.",
)


def documents(words: int = 350) -> tuple[str, ...]:
    """The sentences run together into long texts, each starting elsewhere."""
    found = []
    for start in range(0, len(SENTENCES), 10):
        rotated = " ".join((*SENTENCES[start:], *SENTENCES[:start])).split()
        found.append(" ".join(rotated[:words]))
    return tuple(found)


def sample(long: bool = True) -> tuple[str, ...]:
    """All of it: short texts, and long ones as well; 2Quad, whose row sums grow with the length, does not stretch to both."""
    return (*SENTENCES, *(documents() if long else ()))
