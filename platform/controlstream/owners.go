package controlstream

// Owners is whose the pods of a node are, and what teams may have staged there: what
// the node's loader needs to keep teams apart, and cannot know by itself. It is all
// there is; the next takes its place.
type Owners struct {
	Said  bool                // true; nothing but zeros would not go over the wire
	Allow map[string][]string // namespace to beginnings of sources; those that are absent may have all
	Pods  map[string]string   // namespace of each pod of the node by its uid; empty while Allow is
}
