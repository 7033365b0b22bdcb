// Package intents trains a linear classifier from example utterances in memory, and gives the
// intent of a text, or none, with a calibrated probability, also word by word while it is typed.
// It has support vector machines, one for each intent, over hashed character n-grams and words,
// with one more class for texts of no intent. Its confidence is calibrated on examples that were
// left out. Fitting is deterministic.
package intents
