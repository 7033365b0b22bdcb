package controlstream

import (
	"github.com/thaw-dev/thaw/activator"
	"github.com/thaw-dev/thaw/activator/ratelimit"
	"github.com/thaw-dev/thaw/activator/snapshot"
	"github.com/thaw-dev/thaw/functions"
)

// Kind says what dials.
type Kind string

// The kinds of peers.
const (
	KindActivator Kind = "activator"
	KindNode      Kind = "node"
)

// The names in the certificates of the ends of links.
const (
	NameController = "thaw-controller"
	NameActivator  = "thaw-activator"
	NameLoader     = "thaw-loader"
)

// NameOf is the name of a peer of a kind.
func NameOf(k Kind) string {
	if k == KindNode {
		return NameLoader
	}
	return NameActivator
}

// Hello is the first thing that a peer says.
type Hello struct {
	Kind    Kind
	ID      string // unique among its kind: a pod's name, a node's name
	Version string // of the program
}

// Report is news of a peer. Each part may be absent.
type Report struct {
	Hello *Hello // in the first message of a connection, and in no other

	// Of an activator. In the first message after Hello Demand holds all functions
	// with requests; later those whose demand has changed, also to nothing.
	Demand        []Demand
	Wakes         []Wake
	DemandHints   []functions.Name
	HealthReports []HealthReport
	FirstTokens   []FirstToken
	Applied       uint64                  // version of the newest Table it routes by
	RateLimits    *ratelimit.UsageReports // of the limits of teams

	// Of a node's loader. In the first message Pods holds all pods of the node
	// that speak to it; later those that have changed.
	Node *functions.Heartbeat // of its store, its memory and its peers; no Models
	Pods []Pod
}

// Demand is the interest of one activator's clients in a function.
type Demand struct {
	activator.Demand
	InFlight map[string]int // requests per replica
}

// Wake asks for a first replica.
type Wake struct {
	Name functions.Name
	Team string // that asks
}

// HealthReport says that a replica broke on the data path.
type HealthReport struct {
	Name             functions.Name
	Replica, Problem string
}

// FirstToken is how long the first request of a cold start took from READY to the
// engine's first byte.
type FirstToken struct {
	Name      functions.Name
	ColdStart string
	Seconds   float64
}

// Pod is what the shim in a pod says of its replica. The loader of its node knows
// whose words they are by the credentials of the socket, and adds UID.
type Pod struct {
	UID    string                  // of the pod, as Kubernetes has it
	Gone   bool                    // the shim has hung up
	Status functions.ReplicaStatus // ID is empty: the controller knows which replica the pod is; Endpoint is http://POD_IP:PORT
}

// Update is what the controller tells a peer. Each part may be absent.
type Update struct {
	// FullSync: what this message does not name is no more. So is the first of each
	// connection.
	FullSync bool

	// Of activators.
	Functions  []snapshot.Snapshot
	Removed    []functions.Name
	Table      *Table
	Keys       *Keys
	AbortAgent []string              // see activator.Activator.Cut
	RateLimits *ratelimit.Allotments // of the limits of teams

	// Of nodes' loaders.
	Peers    *[]functions.Peer // the other nodes that lend
	Prefetch []functions.LoadRequest
	Stop     []Stop
	Owners   *Owners
}

// Stop tells the shim of a pod, by way of its node's loader, to drain: it is to
// take nothing new and end its engine once nothing is in flight, or after Seconds.
type Stop struct {
	UID     string
	Seconds float64
	Reason  string
}

// Keys are all API keys of the cluster and the limits of the teams they are of.
type Keys struct {
	Keys  []Key
	Teams []functions.Team
}

// Key is one API key. The secret itself is nowhere.
type Key struct {
	ID    string
	Name  string
	Team  string
	Admin bool
	Hash  string // hex of the SHA-256 of the secret, which is 256 random bits
}

// Table is how requests are routed by host and by model: what the Ingress objects
// of our class say, made small. It is immutable.
type Table struct {
	Version uint64 // grows with each change
	Hosts   []Host
	Models  []Model
}

// Host is the rules of one host name.
type Host struct {
	Name     string // exact, in lower case, without a port
	Internal bool   // answered on the private listener only
	Secure   bool   // plain HTTP is redirected to HTTPS
	Paths    []Path // in the order in which they are tried
}

// Path is one rule: the first that fits is taken.
type Path struct {
	Prefix  string            // of the path, "" all
	Headers map[string]string // that the request must have with exactly this value
	Rewrite string            // Host of the forwarded request; "" the client's
	Append  map[string]string // header fields that are set
	Splits  []Split
}

// Split is where a share of the requests goes. Shares of one rule add up to 100.
type Split struct {
	Percent  int
	Function functions.Name    // a revision of class thaw.dev: held while it is cold; else the zero Name
	Address  string            // otherwise: host:port of a service of Kubernetes
	H2C      bool              // what is at Address speaks HTTP/2 without TLS, as its port says
	Append   map[string]string // header fields that are set
}

// Model is how a name in the OpenAI field model is routed: a Knative Service,
// whose traffic goes to revisions of class thaw.dev.
type Model struct {
	Name   functions.Name
	Splits []Split // Function is set in each
}
