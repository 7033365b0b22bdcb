// Package thrift is what keeps a program that forwards many small requests cheap:
// its log is written in few calls (Lines), and it runs on as few cores as the load
// needs (Cores). Neither knows what the program does.
package thrift
