// Package adapteruse limits how often the use of a loaded adapter is reported.
package adapteruse
