package ingress

import (
	"fmt"
	"testing"

	"knative.dev/networking/pkg/apis/networking/v1alpha1"
)

// BenchmarkCompile compiles all Ingresses of a large cluster, as each change does.
func BenchmarkCompile(b *testing.B) {
	const many = 1000
	var all []*v1alpha1.Ingress
	for i := range many {
		spec := fmt.Sprintf("rules: [{hosts: [m%[1]d.a, m%[1]d.a.svc, m%[1]d.a.svc.cluster.local], visibility: ClusterLocal, http: {paths: "+
			"[{splits: [%[2]s, %[3]s]}]}}, "+
			"{hosts: [m%[1]d.a.example.com], visibility: ExternalIP, http: {paths: [{splits: [%[2]s, %[3]s]}]}}]", i, split("rev-1", 80),
			split("rev-2", 20))
		all = append(all, route(object(b, fmt.Sprintf("m%d", i), spec), fmt.Sprintf("m%d", i)))
	}
	known := world()
	b.ReportAllocs()
	for b.Loop() {
		table, problems := Compile(all, known)
		if len(table.Hosts) != 4*many || len(table.Models) != many || len(problems) != 0 {
			b.Fatal(len(table.Hosts), len(table.Models), problems)
		}
	}
}
