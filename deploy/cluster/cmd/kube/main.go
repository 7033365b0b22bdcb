// Kube is a control plane and a node in one file: etcd, the programs of
// Kubernetes and kubectl, chosen by the name it is called by or by its first
// argument. One link costs the memory and the minutes that seven would cost each.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata" // the cluster's containers and namespaces have none

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // what the programs register in their own main packages
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// programs by name. etcd parses its own arguments and is not among them.
var programs = map[string]func() *cobra.Command{
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kube-proxy":              proxy.NewProxyCommand,
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"kubectl":                 kubectl.NewDefaultKubectlCommand,
}

func main() {
	args := os.Args
	if name := filepath.Base(args[0]); programs[name] == nil && name != "etcd" {
		args = args[1:]
	}
	if len(args) > 0 {
		name := filepath.Base(args[0])
		os.Args = args
		if name == "etcd" {
			etcdmain.Main(args)
			return
		}
		if program := programs[name]; program != nil {
			os.Exit(cli.Run(program()))
		}
	}
	names := []string{"etcd"}
	for name := range programs {
		names = append(names, name)
	}
	slices.Sort(names)
	fmt.Fprintf(os.Stderr, "usage: kube PROGRAM ARGUMENTS, with PROGRAM one of %s\n", strings.Join(names, ", "))
	os.Exit(2)
}
