package node

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
)

func TestParseName(t *testing.T) {
	for in, want := range map[string]string{
		"node-1": "node-1", " Foo ": "foo", "a.b.c": "a.b.c",
		"": "error", "a_b": "error", "-a": "error", strings.Repeat("a", 254): "error",
	} {
		got, err := ParseName(in)
		if want == "error" {
			if err == nil {
				t.Errorf("ParseName(%q): %q, %v", in, got, err)
			}
		} else if got != want || err != nil {
			t.Errorf("ParseName(%q): %q, %v", in, got, err)
		}
	}
}

func TestParseLabels(t *testing.T) {
	for in, want := range map[string]string{
		"":                                   "map[]",
		"a=b,c=":                             "map[a:b c:]",
		"foo=bar,node.kubernetes.io/x=y":     "map[foo:bar node.kubernetes.io/x:y]",
		"x.kubelet.kubernetes.io/a=b":        "map[x.kubelet.kubernetes.io/a:b]",
		"topology.kubernetes.io/zone=z":      "map[topology.kubernetes.io/zone:z]",
		"example.com/a=b":                    "map[example.com/a:b]",
		"notkubernetes.io/a=b":               "map[notkubernetes.io/a:b]",
		"node-role.kubernetes.io/master=":    "may not label itself node-role.kubernetes.io/master",
		"kubernetes.io/custom=1":             "may not label itself kubernetes.io/custom",
		"node-restriction.kubernetes.io/a=b": "may not label itself",
		"a.k8s.io/b=c":                       "may not label itself a.k8s.io/b",
		"a":                                  `"a" is not KEY=VALUE`,
		"a b=c":                              "key",
		"a=b c":                              "value",
	} {
		got, err := ParseLabels(in)
		if s := fmt.Sprint(got); err == nil && s != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ParseLabels(%q): %s, %v; want %s", in, s, err, want)
		}
	}
}

func TestParseTaints(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "[]",
		"a=b:NoSchedule,c=d:NoExecute":   "[{a b NoSchedule <nil>} {c d NoExecute <nil>}]",
		"a:PreferNoSchedule,a:NoExecute": "[{a  PreferNoSchedule <nil>} {a  NoExecute <nil>}]",
		"a=b":                            "is not KEY=VALUE:EFFECT",
		"a=b:Never":                      "is not KEY=VALUE:EFFECT",
		":NoSchedule":                    "key",
		"a=b c:NoSchedule":               "value",
		"a=1:NoSchedule,a=2:NoSchedule":  "given twice",
	} {
		got, err := ParseTaints(in)
		if s := fmt.Sprint(got); err == nil && s != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ParseTaints(%q): %s, %v; want %s", in, s, err, want)
		}
	}
}

func TestParseIPs(t *testing.T) {
	for in, want := range map[string]string{
		"":                      "[]",
		"192.0.2.1":             "[192.0.2.1]",
		"192.0.2.1,2001:db8::1": "[192.0.2.1 2001:db8::1]",
		"2001:db8::1,192.0.2.1": "[2001:db8::1 192.0.2.1]",
		"192.0.2.1,192.0.2.2":   "one of each IP family",
		"::ffff:192.0.2.1":      "[192.0.2.1]",
		"host":                  "is not an IP address",
		"127.0.0.2":             "loopback",
		"224.0.0.1":             "multicast",
		"169.254.1.1":           "link-local",
		"0.0.0.0":               "unspecified",
	} {
		got, err := ParseIPs(in)
		if s := fmt.Sprint(got); err == nil && s != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("ParseIPs(%q): %s, %v; want %s", in, s, err, want)
		}
	}
}

func TestParseReserved(t *testing.T) {
	a, err := ParseReserved("cpu=200m,memory=256Mi")
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseReserved("cpu=1,ephemeral-storage=1Gi")
	if err != nil {
		t.Fatal(err)
	}
	sum := AddReserved(a, b)
	if q := sum["cpu"]; q.Cmp(resource.MustParse("1200m")) != 0 || len(sum) != 3 {
		t.Errorf("sum %v", sum)
	}
	for _, bad := range []string{"cpu", "cpu=x", "cpu=-1", "gpu=1"} {
		if got, err := ParseReserved(bad); err == nil {
			t.Errorf("ParseReserved(%q): %v", bad, got)
		}
	}
}
