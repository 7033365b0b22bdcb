package nodeloader

import (
	"errors"
	"strings"
	"testing"
)

const (
	uidA = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	uidB = "ffffffff-0000-4111-8222-333333333333"
)

func under(uid string) string { return strings.ReplaceAll(uid, "-", "_") }

func TestPodOf(t *testing.T) {
	const ctr = "4b7f2c9d1e"
	for name, x := range map[string]struct{ text, self, want string }{
		"version 2, cgroupfs, burstable":    {"0::/kubepods/burstable/pod" + uidA + "/" + ctr, "0::/", uidA},
		"version 2, cgroupfs, best effort":  {"0::/kubepods/besteffort/pod" + uidA + "/" + ctr + "\n", "0::/", uidA},
		"version 2, cgroupfs, guaranteed":   {"0::/kubepods/pod" + uidA + "/" + ctr, "0::/", uidA},
		"version 2, systemd, burstable":     {"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + under(uidA) + ".slice/cri-containerd-" + ctr + ".scope", "0::/", uidA},
		"version 2, systemd, guaranteed":    {"0::/kubepods.slice/kubepods-pod" + under(uidA) + ".slice/crio-" + ctr + ".scope", "0::/", uidA},
		"a root of kubelet's own, systemd":  {"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod" + under(uidA) + ".slice/cri-containerd-" + ctr + ".scope", "0::/", uidA},
		"a root of kubelet's own, cgroupfs": {"0::/thaw-cluster-b/kubelet/kubepods/burstable/pod" + uidA + "/" + ctr, "0::/thaw-cluster-b/kubelet/kubepods/besteffort/pod" + uidB + "/x", uidA},
		"seen from our own namespace":       {"0::/../../../burstable/pod" + uidA + "/" + ctr, "0::/", uidA},
		"the same, of our class":            {"0::/../../pod" + uidA + "/" + ctr, "0::/", uidA},
		"the same, by systemd":              {"0::/../../../kubepods-burstable.slice/kubepods-burstable-pod" + under(uidA) + ".slice/cri-containerd-" + ctr + ".scope", "0::/", uidA},
		"version 1, cgroupfs": {"12:pids:/kubepods/burstable/pod" + uidA + "/" + ctr + "\n4:cpu,cpuacct:/kubepods/burstable/pod" + uidA + "/" +
			ctr +
			"\n1:name=systemd:/kubepods/burstable/pod" + uidA + "/" + ctr + "\n0::/\n", "1:name=systemd:/\n", uidA},
		"version 1, systemd": {"3:memory:/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + under(uidA) + ".slice/docker-" + ctr + ".scope\n0::/system.slice/containerd.service", "", uidA},
		"both versions":      {"1:name=systemd:/kubepods/pod" + uidA + "/" + ctr + "\n0::/kubepods/pod" + uidA + "/" + ctr, "", uidA},
		"a group of the pod's own making": {"0::/kubepods/burstable/pod" + uidA + "/" + ctr + "/kubepods/burstable/pod" + uidB + "/x",
			"0::/kubepods/besteffort/pod" + uidB + "/x", uidA},
		"the same, by systemd's names": {"0::/kubepods.slice/kubepods-pod" + under(uidA) + ".slice/cri-containerd-" + ctr + ".scope/kubepods-pod" + under(uidB) + ".slice", "0::/", uidA},
		"a kubelet in a pod": {"0::/kubepods/burstable/pod" + uidB + "/" + ctr + "/kubelet/kubepods/besteffort/pod" + uidA + "/x",
			"0::/kubepods/burstable/pod" + uidB + "/" + ctr + "/kubelet/kubepods/besteffort/pod99999999-4e5f-6071-8293-a4b5c6d7e8f9/y", uidA},
		"one beside that kubelet": {"0::/kubepods/burstable/pod" + uidB + "/other", "0::/kubepods/burstable/pod" + uidB + "/" + ctr + "/kubelet/kubepods/besteffort/pod" + uidA + "/y", ""},
		"two pods":                {"1:memory:/kubepods/pod" + uidA + "/x\n2:cpu:/kubepods/pod" + uidB + "/x", "", ""},
		"a process of the node":   {"0::/system.slice/sshd.service", "0::/", ""},
		"a user's":                {"0::/user.slice/user-0.slice/session-1.scope", "0::/", ""},
		"the root":                {"0::/", "0::/", ""},
		"ourselves, in our own":   {"0::/", "0::/", ""},
		"a static pod":            {"0::/kubepods/burstable/pod0123456789abcdef0123456789abcdef/x", "", ""},
		"no uid":                  {"0::/kubepods/burstable/podevil/x", "", ""},
		"a uid cut short":         {"0::/kubepods/burstable/pod" + uidA[:35] + "/x", "", ""},
		"a uid in capitals":       {"0::/kubepods/burstable/pod" + strings.ToUpper(uidA) + "/x", "", ""},
		"a uid and more":          {"0::/kubepods/burstable/pod" + uidA + "0/x", "", ""},
		"a pod outside kubepods":  {"0::/machine.slice/pod" + uidA + "/x", "", ""},
		"a slice outside it":      {"0::/machine.slice/machine-pod" + under(uidA) + ".slice/x", "", ""},
		"a name, no path":         {"0::kubepods/pod" + uidA, "", ""},
		"nothing":                 {"", "", ""},
		"no lines of it":          {"\x00\n::\n0:\n0::\n", "", ""},
	} {
		got, err := podOf(x.text, x.self)
		if got != x.want || (err != nil) != (x.want == "") {
			t.Errorf("%s: %q, %v; want %q", name, got, err, x.want)
		}
		if name == "a process of the node" && !errors.Is(err, errNoPod) {
			t.Errorf("%s: %v", name, err)
		}
		if name == "two pods" && errors.Is(err, errNoPod) {
			t.Error("two pods are none")
		}
	}
}

func FuzzPodOf(f *testing.F) {
	f.Add("0::/kubepods/burstable/pod"+uidA+"/x", "0::/")
	f.Add("0::/../../pod"+uidA+"/x", "")
	f.Add("1:a:/kubepods.slice/kubepods-pod"+under(uidA)+".slice/x\n0::/", "1:a:/x/kubepods.slice/y")
	f.Fuzz(func(t *testing.T, text, self string) {
		uid, err := podOf(text, self)
		if (err == nil) != (uid != "") || uid != "" && !isUID(uid) {
			t.Fatalf("%q, %v", uid, err)
		}
		// A group below the container's changes nothing, whatever its name.
		if err == nil && !strings.Contains(text, "\n") {
			if again, err := podOf(text+"/kubepods/pod"+uidB, self); again != uid {
				t.Fatalf("%q became %q, %v", uid, again, err)
			}
		}
	})
}
