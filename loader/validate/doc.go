// Package validate looks at files of weights before any engine does.
//
// Engines parse headers in C++ and Python, and have been crashed and worse by
// headers that lie. Here a header is read with bounds on everything, and a
// file that is shorter than its header says is told apart from one that makes
// no sense: the first is what an interrupted copy leaves behind, and the
// person who made it wants to hear just that.
//
// The check reads the header only, never the tensors.
package validate
