// Package intents recognises the intent of a text by example utterances: a linear
// classifier (support vector machines, one for each intent) over hashed character n-grams
// and words, with one more class for texts of no intent. Its confidence is calibrated on
// examples that were left out. Fitting is deterministic.
package intents
