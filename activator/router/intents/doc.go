// Package intents recognises the intent of a text by example utterances: a linear
// classifier (multinomial logistic regression) over hashed character n-grams, with one
// more class for texts of no intent. Fitting is deterministic.
package intents
