package cli

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/thaw-dev/thaw/activator/browser"
	"github.com/thaw-dev/thaw/functions"
	"github.com/thaw-dev/thaw/platform/cli/kit"
	"github.com/thaw-dev/thaw/platform/placement"
	"github.com/thaw-dev/thaw/platform/placement/eviction"
)

// NodeSettings are the settings of a program that owns GPUs.
type NodeSettings struct {
	GPUs        kit.Count       `json:"gpus" default:"auto" help:"how many GPUs to use: auto, or a number"`
	GPUMemory   functions.Bytes `json:"gpu-memory" default:"0" help:"memory to use of each GPU; 0 is all that is free"`
	Memory      kit.Size        `json:"memory" default:"auto" help:"host memory engines may take together: auto, or a size"`
	SleepMemory functions.Bytes `json:"sleep-memory" default:"0" help:"part of --memory for the weights of sleeping engines; 0: all of it. Engines beyond it sleep without their weights"`
	Store       functions.Bytes `json:"store" default:"0" help:"bytes of checkpoints to keep; 0 is all the disk has but 256Mi"`
}

// moreVariables are the variables that are no settings of the programs that read a file.
var moreVariables = strings.Fields(`THAW_CONFIG THAW_AGENT_CONFIG THAW_LOADER_CONFIG THAW_SERVER THAW_KEY
	THAW_ENGINE_EMBER THAW_ENGINE_VLLM THAW_ENGINE_SGLANG THAW_ENGINE_LLAMACPP THAW_SOURCE_HOSTS THAW_S3_ANONYMOUS
	THAW_S3_STYLE THAW_GCS_ANONYMOUS THAW_IMAGE THAW_MODEL THAW_SOCKETS THAW_IMPORTS_AHEAD THAW_SUPERVISED
	THAW_SESSIONS THAW_BATCHES`)

// warnOfVariables logs the variables of the environment that thaw would read by no name.
func (c *connection) warnOfVariables(log *slog.Logger) {
	if c.programs.Environ == nil {
		return
	}
	known := append(kit.Variables(new(ServeConfig), new(AgentConfig), new(LoaderConfig)), moreVariables...)
	kit.UnknownVariables(c.programs.Environ(), known, func(name, meant string) {
		hint := "thaw serve --help lists the variables"
		if meant != "" {
			hint = "did you mean " + meant + "?"
		}
		log.Warn("this variable is no setting of thaw and is ignored", "variable", functions.Clip(name), "hint", hint)
	})
}

// minEngines is the least memory that any engine runs in.
const minEngines = 16 << 20

func (s *NodeSettings) Check() error {
	for name, size := range map[string]functions.Bytes{"memory": functions.Bytes(s.Memory), "gpu-memory": s.GPUMemory} {
		if size > 0 && size < minEngines {
			return fmt.Errorf("%s: %s is too small for any engine: want %s or more, with its unit, such as 24Gi",
				name, size, functions.Bytes(minEngines))
		}
	}
	return nil
}

// EngineSettings are the settings of how engines start.
type EngineSettings struct {
	Warm       string `json:"warm" default:"auto" help:"keep an interpreter per engine environment that has imported the engine, and fork starts from it; auto: where memory allows" oneof:"off,on,auto"`
	Confine    string `json:"confine" default:"auto" help:"run engines confined: they read their model, their program and system files, and write to a folder of their own, under a user of their own where thaw is root; auto: where the kernel has Landlock" oneof:"off,auto"`
	Vulnerable string `json:"vulnerable-engines" default:"refuse" help:"engines below the version that fixes a known vulnerability (thaw doctor lists them): refuse to start them, or allow" oneof:"refuse,allow"`
	Caches     string `json:"engine-caches" default:"local" help:"what engines compile: local keeps it on the node; trust-source also fetches it from and publishes it to the models' sources (it is code: trust everyone who may write there); off leaves it to the engine" oneof:"local,trust-source,off"`
}

// RequestSettings are the settings of a program that serves requests.
type RequestSettings struct {
	MaxBody     functions.Bytes `json:"max-body" default:"32Mi" help:"largest request body"`
	ClientShare int             `json:"client-share" default:"50" help:"largest percentage of connections per client address and per key, and of body memory per key (per address without a key); 100 behind a reverse proxy"`
	Hold        string          `json:"hold" default:"hold" help:"how plain requests wait for a cold model" oneof:"hold,pad,503"`
}

func (s *RequestSettings) Check() error {
	if s.MaxBody < 1024 {
		return fmt.Errorf("max-body: %s is too small for any request: want 1Ki or more, such as 32Mi", s.MaxBody)
	}
	if s.ClientShare < 1 || s.ClientShare > 100 {
		return fmt.Errorf("client-share: %d is no share: want 1 to 100 percent", s.ClientShare)
	}
	return nil
}

// ShareOf is the most that one client may use of n.
func (s *RequestSettings) ShareOf(n int64) int64 { return n * int64(s.ClientShare) / 100 }

// PolicySettings are the settings of a program that decides which models run.
type PolicySettings struct {
	Eviction      string             `json:"eviction" default:"lru" help:"which model is evicted first where memory is short: the least recently used, the least often used, the least use times reload cost over size, or the one whose next use is latest for its reload cost" oneof:"lru,lfu,gdsf,next-use"`
	KeepAlive     string             `json:"keep-alive" default:"fixed" help:"how long an idle model stays: fixed is its scale.idle; learned is computed from past uses, at most six times that (with --prewarm on, models whose next use is far off are unloaded early)" oneof:"fixed,learned"`
	Prewarm       string             `json:"prewarm" default:"off" help:"start models ahead of requests that their history predicts, where no queued request needs the memory; hints of callers (thaw prewarm) are followed in any case" oneof:"off,on"`
	PrewarmBudget functions.Duration `json:"prewarm-budget" default:"1h" help:"GPU time that starts ahead may take in an hour, for each team; all together four times that"`
}

func (s *PolicySettings) Check() error {
	if s.PrewarmBudget <= 0 {
		return errors.New("prewarm-budget must be more than 0; --prewarm off starts nothing ahead")
	}
	return nil
}

func (s PolicySettings) Policy() placement.Policy {
	p := placement.DefaultPolicy
	p.Eviction, _ = eviction.Parse(s.Eviction) // one of those the setting allows
	if s.KeepAlive == "learned" {
		p.KeepAlive = placement.Learned
	}
	return p
}

// MoneySettings are what costs are computed in and by.
type MoneySettings struct {
	Currency     string  `json:"currency" default:"USD" help:"currency of all prices, costs and budgets: three capital letters"`
	GPUHourPrice float64 `json:"gpu-hour-price" default:"0" help:"what an hour of a GPU costs: a model without price in its file costs a Router its GPU seconds times this; 0: unknown"`
}

func (s *MoneySettings) Check() error {
	if len(s.Currency) != 3 || strings.ContainsFunc(s.Currency, func(r rune) bool { return r < 'A' || r > 'Z' }) {
		return fmt.Errorf("currency: %q is none: want three capital letters, such as EUR", functions.Clip(s.Currency))
	}
	if s.GPUHourPrice < 0 {
		return errors.New("gpu-hour-price must be 0 or more")
	}
	return nil
}

// ServeConfig is the settings of thaw serve. The tags are the only place where a
// setting is named: package kit makes flag, variable, key, help, example and schema
// of them.
type ServeConfig struct {
	Addr      string `json:"addr" default:"127.0.0.1:8080" help:"address to listen on; 127.0.0.1 and localhost also mean ::1, where it is free; other than loopback it wants keys"`
	Data      string `json:"data" help:"folder for the store, keys, tokens and deployed functions" shown:"$XDG_DATA_HOME/thaw or ~/.local/share/thaw"`
	Functions string `json:"functions" help:"folder of model and team files; read, never written"`
	NodeSettings
	RequestSettings
	CacheBytes functions.Bytes `json:"cache-bytes" default:"256Mi" help:"memory for the answers of Routers and models whose file turns a cache on, at most a quarter of the program's own; 0 keeps none"`
	Host       []string        `json:"host" help:"another host name browsers may use on loopback; may be repeated"`
	Origin     []string        `json:"origin" help:"origin of web pages or desktop apps that may use /v1, /ws and /predict: https://HOST[:PORT], http://HOST[:PORT], or SCHEME://* for other schemes, such as app://*; may be repeated"`
	EngineSettings
	PolicySettings
	MoneySettings
	AgentsAddr    string             `json:"agents-addr" help:"where agents of other machines join, over TLS: HOST:PORT, such as 10.0.0.1:8090; empty: agents cannot join"`
	PeerAddr      string             `json:"peer-addr" default:"auto" help:"where agents borrow blocks of checkpoints, and folders of this machine that models name as their source, over TLS: auto (a free port of the host of --addr, none on loopback), HOST:PORT, or off"`
	Peer          []string           `json:"peer" help:"URL of another node that lends blocks, https://HOST:PORT; may be repeated; agents that join are known anyway"`
	LeaveEngines  bool               `json:"leave-engines" default:"false" help:"keep engines running when this process exits, for an upgrade"`
	OrphanTimeout functions.Duration `json:"orphan-timeout" default:"1m" help:"how long engines run on after their server died"`
	Drain         functions.Duration `json:"drain" default:"30s" help:"how long requests under way may go on after SIGTERM"`
	kit.LogSettings
}

type AgentConfig struct {
	Server    string `json:"server" help:"URL of the server's --agents-addr, https://HOST:PORT"`
	TokenFile string `json:"token-file" help:"file with a join token (thaw agents token), for the first start; afterwards the agent has a certificate of its own in its data folder"`
	Addr      string `json:"addr" default:"127.0.0.1:0" help:"address to listen on; the server must reach it"`
	Advertise string `json:"advertise" help:"URL under which the server reaches this agent, https://HOST:PORT" shown:"https:// and the address listened on"`
	Name      string `json:"name" help:"name of this node" shown:"the host's name"`
	Data      string `json:"data" help:"folder for the store and the engines' logs" shown:"$XDG_DATA_HOME/thaw-agent or ~/.local/share/thaw-agent"`
	NodeSettings
	EngineSettings
	PeerAddr      string             `json:"peer-addr" default:"auto" help:"where other nodes borrow blocks of checkpoints, over TLS with the certificates of their enrolment: auto (a free port of the host of --advertise or --addr), HOST:PORT, or off"`
	Machine       string             `json:"machine" help:"identity of the machine whose paths this agent reads; agents of one machine use its folders in place" shown:"the host's"`
	Peer          []string           `json:"peer" help:"URL of another node that lends blocks, https://HOST:PORT; may be repeated; those the server knows are known anyway"`
	LeaveEngines  bool               `json:"leave-engines" default:"false" help:"keep engines running when this process exits, for an upgrade"`
	OrphanTimeout functions.Duration `json:"orphan-timeout" default:"1m" help:"how long engines run on after their agent died"`
	kit.LogSettings
}

// KeepConfig is the settings of thaw keep, which its agent passes.
type KeepConfig struct {
	Socket        string
	Dir           string
	OrphanTimeout time.Duration
}

// check validates the settings together and fills in defaults of the machine.
func (c *ServeConfig) check(getenv func(string) string) (err error) {
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return fmt.Errorf("addr: %q is no address: want HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080", functions.Clip(c.Addr))
	}
	if err := cmp.Or(c.NodeSettings.Check(), c.RequestSettings.Check(), c.MoneySettings.Check(), c.PolicySettings.Check()); err != nil {
		return err
	}
	for _, o := range c.Origin {
		if err := browser.CheckOrigin(o); err != nil {
			return err
		}
	}
	for _, h := range c.Host {
		if ip := net.ParseIP(strings.Trim(h, "[]")); ip != nil && ip.IsUnspecified() {
			return fmt.Errorf("host: %q is where a server listens, and host is a name that browsers use: did you mean --addr %s?", functions.Clip(h),
				net.JoinHostPort(ip.String(), "8080"))
		}
		if net.ParseIP(h) == nil && strings.ContainsAny(h, "/: *") {
			return fmt.Errorf("host: %q is no name of a host: leave scheme, port and path out", functions.Clip(h))
		}
	}
	if c.OrphanTimeout <= 0 || c.Drain <= 0 {
		return errors.New("orphan-timeout and drain must be more than 0")
	}
	if c.Data == "" {
		c.Data, err = dataDir(getenv, "thaw")
	}
	return cmp.Or(err, kit.MakeAbsolute(&c.Data, &c.Functions))
}

func (c *AgentConfig) check(getenv func(string) string) (err error) {
	if c.Server == "" {
		return errors.New("server: the URL of the server to join is needed: --server https://HOST:8090, its --agents-addr")
	}
	if u, err := url.Parse(c.Server); err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" {
		return fmt.Errorf("server: %q is not where a server takes agents: want https://HOST:PORT, its --agents-addr", functions.Clip(c.Server))
	}
	if u, err := url.Parse(c.Advertise); c.Advertise != "" && (err != nil || u.Scheme != "https" ||
		u.Hostname() == "" || u.Port() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "") {
		return fmt.Errorf("advertise: %q is not where the server reaches this agent: want https://HOST:PORT", functions.Clip(c.Advertise))
	}
	if _, _, err := net.SplitHostPort(c.Addr); err != nil {
		return fmt.Errorf("addr: %q is no address: want HOST:PORT", functions.Clip(c.Addr))
	}
	if c.OrphanTimeout <= 0 {
		return errors.New("orphan-timeout must be more than 0")
	}
	if err := c.NodeSettings.Check(); err != nil {
		return err
	}
	if err := defaultHostname(&c.Name); err != nil {
		return fmt.Errorf("name: %w", err)
	}
	if c.Data == "" {
		c.Data, err = dataDir(getenv, "thaw-agent")
	}
	return cmp.Or(err, kit.MakeAbsolute(&c.Data, &c.TokenFile))
}

// defaultHostname fills in the name of this host where name is empty.
func defaultHostname(name *string) error {
	if *name != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("this host has none: %w", err)
	}
	*name = strings.ToLower(host)
	return nil
}

// dataDir returns the default data folder of that name, by XDG_DATA_HOME or HOME.
func dataDir(getenv func(string) string, name string) (string, error) {
	if x := getenv("XDG_DATA_HOME"); filepath.IsAbs(x) {
		return filepath.Join(x, name), nil
	}
	if home := getenv("HOME"); home != "" {
		return filepath.Join(home, ".local", "share", name), nil
	}
	return "", errors.New("data: there is no home folder to keep it in: give --data DIR")
}
