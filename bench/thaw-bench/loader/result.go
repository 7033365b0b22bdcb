package loader

import (
	"fmt"

	"github.com/thaw-dev/thaw/bench/report"
	"github.com/thaw-dev/thaw/functions"
)

// Kind is the kind of the result's document.
const Kind = "LoaderBench"

// Names of the comparisons.
const (
	Unshaped   = "as quick as it goes"
	WithMD5    = "with an MD5 of the whole at the source"
	Shaped     = "shaped like an account"
	WithStorms = "shaped, with storms of 503"
)

// Trial is one download. For thaw, Seconds is until every block had arrived with a valid
// checksum, Durable until the checkpoint was published with its digests (READY), and CPU
// is of all of it.
type Trial struct {
	Seconds  float64 `json:"seconds"`         // until all bytes had arrived
	Durable  float64 `json:"durable_seconds"` // until they were durable
	CPU      float64 `json:"cpu_seconds_per_gib"`
	RSS      int64   `json:"max_rss_bytes"`
	ReadBack int64   `json:"read_from_disk_bytes,omitempty"` // by thaw, until READY
}

// Row is one contender's results.
type Row struct {
	Contender string  `json:"contender"`
	Trials    []Trial `json:"trials"`
	Rate      float64 `json:"bytes_per_second"`         // medians
	OnDisk    float64 `json:"durable_bytes_per_second"` // until durable
	CPU       float64 `json:"cpu_seconds_per_gib"`
	RSS       int64   `json:"max_rss_bytes"` // the maximum
	// Ratios of thaw to this contender: the median over the rounds. For rates higher is
	// better for thaw, for CPU lower is.
	ThawRate   float64 `json:"thaw_rate_ratio"`
	ThawOnDisk float64 `json:"thaw_durable_rate_ratio"`
	ThawCPU    float64 `json:"thaw_cpu_ratio"`
}

// Comparison is all contenders on one server.
type Comparison struct {
	Name     string     `json:"name"`
	Bytes    int64      `json:"bytes"`
	Shape    Shape      `json:"shape"`
	Ceilings []Ceilings `json:"ceilings"` // one per round
	Rows     []Row      `json:"contenders"`
	// Ceiling is the lowest of link, disk and the shape's rate; Share is the fraction of
	// it that thaw reaches, the median over the rounds.
	Ceiling float64 `json:"ceiling_bytes_per_second"`
	Share   float64 `json:"thaw_share_of_ceiling"`
	// Staged is the time to READY over that of the download alone (ThawAlone), the median
	// over the rounds; ReadBack the most that a staging read from the disk before READY.
	Staged   float64 `json:"ready_over_download_alone,omitempty"`
	ReadBack int64   `json:"read_from_disk_bytes"`
}

// Memory is the peak memory at one size.
type Memory struct {
	Bytes   int64   `json:"bytes"`
	RSS     int64   `json:"max_rss_bytes"`
	Seconds float64 `json:"seconds"`
}

// Resumed is a download that was killed and resumed.
type Resumed struct {
	Bytes       int64   `json:"bytes"`
	Before      int64   `json:"read_before_kill_bytes"`
	Kept        int64   `json:"kept_bytes"` // found complete by the second run
	After       int64   `json:"read_after_kill_bytes"`
	Again       float64 `json:"lost_by_the_kill_share"` // read again by the second run
	RereadShare float64 `json:"in_vain_share"`          // read twice by the second run: hedged requests for slow ranges
	Seconds     float64 `json:"seconds_of_the_second"`
}

// Peers is many cold nodes with one source; times in seconds, one per round.
type Peers struct {
	Bytes  int64     `json:"bytes"` // of the model
	Nodes  int       `json:"nodes"`
	Total  int64     `json:"source_bytes_per_second"`
	Alone  []float64 `json:"one_alone_seconds"`
	Last   []float64 `json:"last_done_seconds"`
	Egress []float64 `json:"egress_models"` // sent by the source, in multiples of the model
}

// Streamed is a model woken while its bytes are staged; times in seconds, one per round.
type Streamed struct {
	Bytes     int64     `json:"bytes"`
	Total     int64     `json:"source_bytes_per_second"`
	BootDelay float64   `json:"boot_delay_seconds"`
	Download  []float64 `json:"download_alone_seconds"`
	Boot      []float64 `json:"first_token_with_local_bytes_seconds"`
	First     []float64 `json:"first_token_streamed_seconds"`
}

// ratio returns the median of f over the rounds.
func ratio(n int, f func(i int) float64) float64 {
	v := make([]float64, n)
	for i := range v {
		v[i] = f(i)
	}
	return report.Quantile(v, 0.5)
}

// Result is the benchmark's document. Parts that were skipped are absent.
type Result struct {
	report.Provenance
	Missing     []string      `json:"contenders_not_found,omitempty"`
	Comparisons []*Comparison `json:"comparisons,omitempty"`
	Memory      []Memory      `json:"memory,omitempty"`
	Resumed     *Resumed      `json:"resumed,omitempty"`
	Peers       *Peers        `json:"peers,omitempty"`
	Streamed    *Streamed     `json:"streamed,omitempty"`
	Goals       report.Goals  `json:"goals"`
}

// lower returns the lowest ceiling of one round; for the disk, the faster way of writing
// counts.
func lower(c Ceilings, shape Shape) float64 {
	low := min(c.Link, max(c.Direct, c.Cached))
	if t := float64(shape.Total); t > 0 {
		low = min(low, t)
	}
	return low
}

// reduce computes medians and ratios.
func (c *Comparison) reduce() {
	size := float64(c.Bytes)
	var thaw []Trial
	for _, r := range c.Rows {
		if r.Contender == Thaw {
			thaw = r.Trials
		}
	}
	for i := range c.Rows {
		r := &c.Rows[i]
		r.Rate = median(r.Trials, func(t Trial) float64 { return size / t.Seconds })
		r.OnDisk = median(r.Trials, func(t Trial) float64 { return size / t.Durable })
		r.CPU = median(r.Trials, func(t Trial) float64 { return t.CPU })
		var rate, disk, cpu []float64
		for k, t := range r.Trials {
			r.RSS = max(r.RSS, t.RSS)
			if k < len(thaw) {
				rate = append(rate, t.Seconds/thaw[k].Seconds)
				disk = append(disk, t.Durable/thaw[k].Durable)
				if t.CPU > 0 {
					cpu = append(cpu, thaw[k].CPU/t.CPU)
				}
			}
		}
		r.ThawRate, r.ThawOnDisk = report.Quantile(rate, 0.5), report.Quantile(disk, 0.5)
		r.ThawCPU = report.Quantile(cpu, 0.5)
	}
	c.Ceiling = median(c.Ceilings, func(x Ceilings) float64 { return lower(x, c.Shape) })
	var share []float64
	for k, t := range thaw {
		share = append(share, size/t.Durable/lower(c.Ceilings[k], c.Shape))
		c.ReadBack = max(c.ReadBack, t.ReadBack)
	}
	if alone := c.row(ThawAlone); alone != nil {
		c.Staged = ratio(len(thaw), func(i int) float64 { return thaw[i].Durable / alone.Trials[i].Durable })
	}
	c.Share = report.Quantile(share, 0.5)
}

func (c *Comparison) row(name string) *Row {
	for i := range c.Rows {
		if c.Rows[i].Contender == name {
			return &c.Rows[i]
		}
	}
	return nil
}

// checkGoals compares the result with the goals.
func checkGoals(r Result) report.Goals {
	var goals report.Goals
	add := goals.Add
	for _, c := range r.Comparisons {
		size := functions.Bytes(c.Bytes).Human()
		alone := c.row(ThawAlone)
		if alone != nil {
			add(c.Staged <= 1.1, size+" "+c.Name+", READY beside the download alone", "at most 1.10x", fmt.Sprintf("%.2fx", c.Staged))
			add(c.ReadBack < c.Bytes/100, size+" "+c.Name+", read from the disk before READY", "under 1 %", functions.Bytes(c.ReadBack).Human())
		}
		switch c.Name {
		case Unshaped:
			add(c.Share >= 0.9, size+" "+c.Name+", of the lower ceiling (link, disk)", "at least 0.90", fmt.Sprintf("%.2f", c.Share))
			if x := c.row(AzblobTuned); x != nil {
				add(x.ThawOnDisk >= 1.2, size+" "+c.Name+", rate beside azblob tuned", "at least 1.2x", fmt.Sprintf("%.2fx", x.ThawOnDisk))
			}
			if x := c.row(AzblobTuned); x != nil && alone != nil {
				add(alone.CPU <= 0.7*x.CPU, size+" "+c.Name+", CPU per GiB beside azblob tuned, without digests",
					"at most 0.70x", fmt.Sprintf("%.2fx (%.2fx with them)", alone.CPU/x.CPU, x.ThawCPU))
			}
		case Shaped:
			add(c.Share >= 0.85, size+" "+c.Name+", of the shaped ceiling", "at least 0.85", fmt.Sprintf("%.2f", c.Share))
			if x := c.row(Azblob); x != nil {
				add(x.ThawOnDisk >= 4, size+" "+c.Name+", rate beside azblob default", "at least 4x", fmt.Sprintf("%.2fx", x.ThawOnDisk))
			}
		}
	}
	for _, m := range r.Memory {
		add(m.RSS < 256<<20, "memory at "+functions.Bytes(m.Bytes).Human(), "under 256 MiB", functions.Bytes(m.RSS).Human())
	}
	if x := r.Resumed; x != nil {
		add(x.Again < 0.02, "bytes read again after kill -9 in the middle", "under 2 %", fmt.Sprintf("%.2f %%", 100*x.Again))
	}
	if x := r.Streamed; x != nil {
		overhead := ratio(len(x.First), func(i int) float64 { return x.First[i] / max(x.Download[i], x.Boot[i]) })
		add(overhead < 1.15, "first token while the bytes come, beside max(download, boot)", "under 1.15x", fmt.Sprintf("%.2fx", overhead))
	}
	if x := r.Peers; x != nil {
		egress := report.Quantile(x.Egress, 0.5)
		slowdown := ratio(len(x.Last), func(i int) float64 { return x.Last[i] / x.Alone[i] })
		add(egress <= 1.1, fmt.Sprintf("%d cold nodes, what the source sends", x.Nodes), "at most 1.1 models", fmt.Sprintf("%.2f models", egress))
		add(slowdown <= 1.5, fmt.Sprintf("%d cold nodes, the last beside one alone", x.Nodes), "within 1.5x", fmt.Sprintf("%.2fx", slowdown))
	}
	return goals
}

// Tables returns the result as tables.
func (r Result) Tables() []report.Part {
	var out []report.Part
	for _, c := range r.Comparisons {
		t := &report.Table{Head: []string{"contender", "GB/s", "on the disk", "CPU s/GiB", "peak memory", "thaw: rate", "on the disk", "CPU"}}
		times := func(f float64) string {
			if f == 0 {
				return "–"
			}
			return fmt.Sprintf("%.2fx", f)
		}
		for _, x := range c.Rows {
			if x.Contender == Thaw {
				x.ThawRate, x.ThawOnDisk, x.ThawCPU = 0, 0, 0
			}
			t.Add(x.Contender, fmt.Sprintf("%.2f", x.Rate/1e9), fmt.Sprintf("%.2f", x.OnDisk/1e9),
				fmt.Sprintf("%.2f", x.CPU), functions.Bytes(x.RSS).Human(), times(x.ThawRate), times(x.ThawOnDisk),
				times(x.ThawCPU))
		}
		out = append(out, report.Part{Heading: fmt.Sprintf("%s, %s", functions.Bytes(c.Bytes).Human(), c.Name), Table: t})
		out = append(out, c.ceilings())
	}
	if len(r.Memory) > 0 {
		t := &report.Table{Head: []string{"weights", "peak memory of thaw", "GB/s"}}
		for _, m := range r.Memory {
			t.Add(functions.Bytes(m.Bytes).Human(), functions.Bytes(m.RSS).Human(), fmt.Sprintf("%.2f", float64(m.Bytes)/m.Seconds/1e9))
		}
		out = append(out, report.Part{Heading: "Memory", Table: t})
	}
	if x := r.Resumed; x != nil {
		t := &report.Table{Head: []string{"kill -9 at 50 %", ""}}
		t.Add("weights", functions.Bytes(x.Bytes).Human())
		t.Add("read before", functions.Bytes(x.Before).Human())
		t.Add("found whole by the second", functions.Bytes(x.Kept).Human())
		t.Add("read after", functions.Bytes(x.After).Human())
		t.Add("lost by the kill and read again", fmt.Sprintf("%.2f %%", 100*x.Again))
		t.Add("read twice by the second itself", fmt.Sprintf("%.2f %%", 100*x.RereadShare))
		out = append(out, report.Part{Heading: "Killed and begun again", Table: t})
	}
	row := func(t *report.Table, name string, v []float64, form string) {
		t.Add(name, fmt.Sprintf(form, report.Quantile(v, 0.5)), fmt.Sprintf(form, report.Quantile(v, 0)),
			fmt.Sprintf(form, report.Quantile(v, 1)))
	}
	if x := r.Streamed; x != nil {
		t := &report.Table{Head: []string{fmt.Sprintf("%s of ember at %s/s, boot %.1f s", functions.Bytes(x.Bytes).Human(),
			functions.Bytes(x.Total).Human(), x.BootDelay), "median", "lowest", "highest"}}
		row(t, "the bytes alone", x.Download, "%.2f s")
		row(t, "first token, bytes here", x.Boot, "%.2f s")
		row(t, "first token, while they come", x.First, "%.2f s")
		t.Add("staged first it would be", fmt.Sprintf("%.2f s",
			ratio(len(x.First), func(i int) float64 { return x.Download[i] + x.Boot[i] })), "", "")
		out = append(out, report.Part{Heading: "A start while the bytes come", Table: t})
	}
	if x := r.Peers; x != nil {
		t := &report.Table{Head: []string{fmt.Sprintf("%s, one source of %d MB/s", functions.Bytes(x.Bytes).Human(), x.Total/1e6), "median",
			"lowest", "highest"}}
		row(t, "one node alone", x.Alone, "%.2f s")
		row(t, fmt.Sprintf("the last of %d", x.Nodes), x.Last, "%.2f s")
		row(t, "what the source sent, in models", x.Egress, "%.2f")
		out = append(out, report.Part{Heading: "Cold nodes and their peers", Table: t})
	}
	return append(out, r.Goals.Parts()...)
}

// ceilings is the table of what the machine could do in the same minutes.
func (c *Comparison) ceilings() report.Part {
	t := &report.Table{Head: []string{"ceiling", "GB/s, median", "lowest", "highest", "CPU s/GiB"}}
	row := func(name string, f func(Ceilings) float64, cpu string) {
		var v []float64
		for _, x := range c.Ceilings {
			v = append(v, f(x)/1e9)
		}
		t.Add(name, fmt.Sprintf("%.2f", report.Quantile(v, 0.5)), fmt.Sprintf("%.2f", report.Quantile(v, 0)),
			fmt.Sprintf("%.2f", report.Quantile(v, 1)), cpu)
	}
	row("link: received and dropped", func(x Ceilings) float64 { return x.Link },
		fmt.Sprintf("%.2f", median(c.Ceilings, func(x Ceilings) float64 { return x.CPULink })))
	row("link and page cache: received and written", func(x Ceilings) float64 { return x.Copy },
		fmt.Sprintf("%.2f", median(c.Ceilings, func(x Ceilings) float64 { return x.CPUCopy })))
	row("link and disk: received and written past the cache", func(x Ceilings) float64 { return x.Past },
		fmt.Sprintf("%.2f", median(c.Ceilings, func(x Ceilings) float64 { return x.CPUPast })))
	row("disk, O_DIRECT", func(x Ceilings) float64 { return x.Direct }, "")
	row("disk, through the cache and fsync", func(x Ceilings) float64 { return x.Cached }, "")
	perGiB := func(rate float64) string { return fmt.Sprintf("%.2f", (1<<30)/rate) }
	row("xxh3, of a core's time", func(x Ceilings) float64 { return x.XXH3 },
		perGiB(median(c.Ceilings, func(x Ceilings) float64 { return x.XXH3 })))
	row("BLAKE3, of a core's time", func(x Ceilings) float64 { return x.BLAKE3 },
		perGiB(median(c.Ceilings, func(x Ceilings) float64 { return x.BLAKE3 })))
	row("sha256, of a core's time", func(x Ceilings) float64 { return x.SHA256 },
		perGiB(median(c.Ceilings, func(x Ceilings) float64 { return x.SHA256 })))
	row("MD5, of a core's time", func(x Ceilings) float64 { return x.MD5 },
		perGiB(median(c.Ceilings, func(x Ceilings) float64 { return x.MD5 })))
	return report.Part{Heading: fmt.Sprintf("Ceilings of the same minutes; thaw reaches %.2f of %.2f GB/s", c.Share,
		c.Ceiling/1e9), Table: t}
}

// Markdown returns the report as a page.
func (r Result) Markdown() string {
	return r.Page("How bytes come to the disk",
		"Server and contenders are processes of their own on this machine; interleaved rounds, medians; every download "+
			"compared with what the server sent. “On the disk” counts until the bytes would survive a loss of power, and for thaw "+
			"until READY: published, with its digests. “The bytes alone” is the same download without digests, not published. The "+
			"ratios are thaw's to that contender, round by round. A shaped source is one that thaw has staged from before, as a "+
			"node has; what it brings the first time is a row of its own.", r.Missing, r.Tables())
}

// Write writes loader.json and loader.md.
func (r Result) Write(dir string) error { return report.Write(dir, "loader", r, r.Markdown()) }
