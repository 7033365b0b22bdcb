package forkserver

// Supported: forked engines need a child subreaper as their parent.
const Supported = true
