package controlstream

import (
	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/auth"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// Kind is the kind of a peer.
type Kind string

const (
	KindActivator Kind = "activator"
	KindNode      Kind = "node"
)

// The names in the certificates of both ends.
const (
	NameController = "thaw-controller"
	NameActivator  = "thaw-activator"
	NameLoader     = "thaw-loader"
)

// NameOf returns the certificate name of a kind of peer.
func NameOf(k Kind) string {
	if k == KindNode {
		return NameLoader
	}
	return NameActivator
}

// Hello identifies a peer.
type Hello struct {
	Kind    Kind
	ID      string // unique among its kind: a pod's name, a node's name
	Version string // the program's version
}

// Report is a message from a peer to the controller. Every part is optional.
type Report struct {
	Hello *Hello // in the first message of a connection only

	// From an activator. In the first message Demand holds all functions with requests;
	// later those whose demand has changed, including to zero.
	Demand        []activator.Demand
	Wakes         []Wake
	DemandHints   []functions.Name
	HealthReports []HealthReport
	FirstTokens   []FirstToken
	Applied       uint64                  // version of the newest Table that it routes by
	RateLimits    *ratelimit.UsageReports // usage of the teams' limits

	// From a node's loader. In the first message Pods holds all connected pods of the node;
	// later those whose status has changed.
	Node *functions.Heartbeat // store, memory and peers; without Models
	Pods []Pod
}

// Wake requests a first replica.
type Wake struct{ Name functions.Name }

// HealthReport reports a replica that failed a request.
type HealthReport struct {
	Name             functions.Name
	Replica, Problem string
}

// FirstToken is the time from READY to the engine's first byte, for the first request of a
// cold start. The phase of the timeline that it measures ([functions.PhaseFirstToken]) names it.
type FirstToken struct {
	Name      functions.Name
	ColdStart string
	Seconds   float64
}

// Pod is the status of a pod's replica, as its shim reports it. The node's loader adds UID,
// which it finds by the credentials of the shim's socket.
type Pod struct {
	UID    string                  // the pod's UID in Kubernetes
	Gone   bool                    // the shim has disconnected
	Status functions.ReplicaStatus // ID is empty: the controller knows which replica the pod is; Endpoint is http://POD_IP:PORT
}

// Update is a message from the controller to a peer. Every part is optional.
type Update struct {
	// FullSync: functions that this message does not name are removed. Set in the first
	// message of a connection.
	FullSync bool

	// For activators.
	Functions  []snapshot.Snapshot
	Removed    []functions.Name
	Table      *Table
	Keys       *Keys
	AbortAgent []string              // URLs for activator.Activator.AbortThrough
	RateLimits *ratelimit.Allotments // of the teams' limits

	// For nodes' loaders.
	Peers    *[]functions.Peer // the other nodes that serve blocks
	Prefetch []functions.LoadRequest
	Stop     []Stop
	Owners   *Owners
}

// Stop has the node's loader drain a pod: its shim refuses new requests and ends the engine
// once none are in flight, or after Seconds.
type Stop struct {
	UID     string
	Seconds float64
	Reason  string
}

// Keys holds all API keys of the cluster, and the limits of their teams.
type Keys struct {
	Keys  []auth.StoredKey // Hash is the hex SHA-256 of the secret, which is 256 random bits
	Teams []functions.Team
}

// Table routes requests by host and by model. It is compiled from the Ingress objects of
// our class, and immutable.
type Table struct {
	Version uint64 // grows with each change
	Hosts   []Host
	Models  []Model
}

// Host holds the rules of one host name.
type Host struct {
	Name     string // exact, in lower case, without a port
	Internal bool   // answered on the private listener only, where it comes before an external host of the same name
	Secure   bool   // plain HTTP is redirected to HTTPS
	Paths    []Path // first match wins
}

// Path is one rule of a host.
type Path struct {
	Prefix  string            // of the request's path; "" matches all
	Headers map[string]string // exact values that the request must have; here and in Append names are canonical
	Rewrite string            // Host of the forwarded request; "": the client's
	Append  map[string]string // header fields to set
	Splits  []Split
}

// Split is a share of a rule's requests. The shares of one rule add up to 100.
type Split struct {
	Percent  int
	Function functions.Name    // a revision of class thaw.dev, whose requests are held while it is cold; else the zero Name
	Address  string            // otherwise: host:port of a Kubernetes service
	H2C      bool              // Address speaks HTTP/2 without TLS, by its port's declaration
	Append   map[string]string // header fields to set
}

// Model routes a value of the OpenAI field model: a Knative Service whose traffic goes to
// revisions of class thaw.dev.
type Model struct {
	Name   functions.Name
	Splits []Split // Function is set in each
}
