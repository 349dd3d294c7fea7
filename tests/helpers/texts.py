"""The sentences that tests train tokenizers on and score."""

SENTENCES = (
    "The quick brown fox jumps over the lazy dog near the river bank.",
    "A fast auburn fox leapt above a sleepy hound by the water.",
    "28-year-old chef found dead in a San Francisco mall.",
    "The victim's brother says he can't think of anyone who would want to hurt him.",
    "Researchers measured the temperature of the ocean at forty-two stations.",
    "Scientists recorded how warm the sea was at several dozen places.",
    "She sells sea shells on the sea shore, and the shells she sells are sea shells.",
    "Prices rose by 3.5% in June; analysts had expected 2.9%.",
    "It is raining.",
    "The committee will publish its final report on Tuesday, officials said.",
    "On Tuesday the panel is going to release the report, according to officials.",
    "He bought three apples, two pears and a loaf of bread at the market.",
    "At the market he purchased fruit and bread.",
    "The train to the north was late again because of snow on the line.",
    "Heavy snow delayed the northbound train once more.",
    "Das Wetter ist heute schön, aber morgen soll es regnen.",
    "Le café était fermé à cause de la grève générale.",
    "El niño comió una manzana y después se durmió.",
    "The minister denied every allegation and refused to answer questions.",
    "Questions remained unanswered while the minister rejected the claims.",
    "A small boat crossed the harbour under a bright moon.",
    "Under moonlight, a little vessel went across the port.",
    "The company plans to hire two hundred engineers before winter.",
    "Before the winter two hundred engineers are to be hired by the firm.",
    "No one expected the goalkeeper to score in the last minute.",
    "Nobody had thought the keeper would get a goal so late.",
    "Children laughed as the puppet show began in the old theatre.",
    "The old theatre filled with laughter when the puppets appeared.",
    "Doctors recommend eight hours of sleep and plenty of water.",
    "Sleep well and drink enough, doctors advise.",
)

CANDIDATES = list(SENTENCES[:24:2])
REFERENCES = list(SENTENCES[1:24:2])
