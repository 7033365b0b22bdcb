package controlstream

// Owners is the list of a node's pods by namespace and the namespaces' allowed sources. The
// node's loader needs it to keep teams apart. Each list replaces the one before.
type Owners struct {
	Said  bool                // always true: gob does not send a struct of zero values
	Allow map[string][]string // namespace to allowed prefixes of sources; a namespace that is absent may stage all
	Pods  map[string]string   // namespace of each pod of the node by its UID; empty if Allow is
}
