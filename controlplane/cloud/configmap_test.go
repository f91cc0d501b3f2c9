package cloud

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
)

const period = 5 * time.Second // of the node lifecycle controller

func machines(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "machines"}, Data: data}
}

// lifecycle runs Kubernetes' controller that deletes the nodes of machines that are gone.
func (l *lab) lifecycle(c cloudprovider.Interface) {
	l.Helper()
	l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
		ctl, err := nodelifecycle.NewCloudNodeLifecycleController(f.Core().V1().Nodes(), l.client, c, period, 1)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context) { ctl.Run(ctx, counted()) }, nil
	})
}

// TestNothingIsDeletedForWhatIsMissing: whatever becomes of the ConfigMap, the nodes stay
// that are not ready, until an inventory that can be read has one of them no more.
func TestNothingIsDeletedForWhatIsMissing(t *testing.T) {
	const all = "machines: [{name: n-1}, {name: n-2}, {name: n-3}]"
	inLab(t, func(l *lab) {
		maps := l.client.CoreV1().ConfigMaps("kube-system")
		c := l.provider("configMap: kube-system/machines")
		l.lifecycle(c)
		stays := func(what, want string) {
			l.Helper()
			l.later(3 * period)
			if got := l.nodes(); got != "n-1 n-2 n-3" {
				l.Fatalf("%s: %s are left", what, got)
			}
			_, err := (*instances)(c).InstanceExists(l.ctx, silent("n-1"))
			if got := fmt.Sprint(err); got != want {
				l.Errorf("%s: %s, want %s", what, got, want)
			}
		}
		update := func(data map[string]string) {
			l.Helper()
			if _, err := maps.Update(l.ctx, machines(data), metav1.UpdateOptions{}); err != nil {
				l.Fatal(err)
			}
		}
		absent := "inventory of machines: ConfigMap kube-system/machines is not there"
		stays("never made", absent)

		if _, err := maps.Create(l.ctx, machines(map[string]string{DefaultKey: "machines: [{name: N-1}]"}), metav1.CreateOptions{}); err != nil {
			l.Fatal(err)
		}
		stays("broken from the start", `inventory of machines: ConfigMap kube-system/machines, key inventory.yaml: line 1: machines[0].name: "N-1" is no name of a node: `+
			"a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')")
		update(map[string]string{DefaultKey: all})
		stays("whole", "<nil>")
		update(nil)
		stays("emptied", "<nil>")
		update(map[string]string{DefaultKey: ""})
		stays("its key emptied", "<nil>")
		update(map[string]string{DefaultKey: "machines: []"})
		stays("its list emptied", "<nil>")
		update(map[string]string{DefaultKey: "machines:\n- {name: n-1}\n- {name: n-2}\n- {name: "})
		stays("cut off", "<nil>")
		if err := maps.Delete(l.ctx, "machines", metav1.DeleteOptions{}); err != nil {
			l.Fatal(err)
		}
		stays("deleted", absent)
		if got := l.events("DeletingNode"); len(got) > 0 {
			l.Errorf("%q", got)
		}

		if _, err := maps.Create(l.ctx, machines(map[string]string{DefaultKey: strings.Replace(all, ", {name: n-3}", "", 1)}), metav1.CreateOptions{}); err != nil {
			l.Fatal(err)
		}
		l.later(3 * period)
		if got := l.nodes(); got != "n-1 n-2" {
			l.Errorf("n-3's machine is gone, and %s are left", got)
		}
		if got := l.events("DeletingNode"); !slices.Equal(got, []string{"n-3: Deleting node n-3 because it does not exist in the cloud provider"}) {
			l.Errorf("%q", got)
		}
	}, silent("n-1"), silent("n-2"), silent("n-3"))
}

// TestBrokenConfigMap: whoever broke it reads where, once, and what was there before stays.
func TestBrokenConfigMap(t *testing.T) {
	inLab(t, func(l *lab) {
		c := l.provider("{configMap: kube-system/machines, key: all}")
		c.Initialize(clients{l.client}, l.ctx.Done())
		if v, err := c.said(); err != nil || len(v.pool) != 2 {
			l.Fatalf("%v, %v", v, err)
		}
		for _, text := range []string{"machines:\n- {name: n-1}\n- {name: n-1}\n", "machines:\n- {name: n-1}\n- {name: n-1}\n# again"} {
			if _, err := l.client.CoreV1().ConfigMaps("kube-system").Update(l.ctx, machines(map[string]string{"all": text}), metav1.UpdateOptions{}); err != nil {
				l.Fatal(err)
			}
			l.later(time.Second)
		}
		const want = "machines: key all: line 3: machines[1].name: n-1 is there twice: the inventory that was read before stays in use"
		if got := l.events("InventoryBroken"); !slices.Equal(got, []string{want}) {
			l.Errorf("%q, want %q", got, want)
		}
		for _, a := range l.client.Actions() {
			if a.GetResource().Resource == "events" && a.GetVerb() == "patch" {
				l.Error("it is said twice")
			}
		}
		if v, err := c.said(); err != nil || len(v.pool) != 2 {
			l.Errorf("%v, %v", v, err)
		}
	}, machines(map[string]string{"all": inventory}), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "other"}, Data: map[string]string{"all": "{}"}})
}

// TestBalancersLater: a ConfigMap may have addresses later; a Service waits for them.
func TestBalancersLater(t *testing.T) {
	inLab(t, func(l *lab) {
		c := l.provider("configMap: kube-system/machines")
		c.Initialize(clients{l.client}, l.ctx.Done())
		f := informers.NewSharedInformerFactory(l.client, 0)
		c.SetInformers(f)
		lb, ok := c.LoadBalancer()
		if !ok {
			l.Fatal("there are no load balancers")
		}
		for _, text := range []string{"machines: [{name: n-1}]", inventory} {
			_, err := lb.EnsureLoadBalancer(l.ctx, "kubernetes", service("a", nil, 80), nil)
			if err == nil || !strings.Contains(err.Error(), "is not there") && err.Error() != "the inventory has no loadBalancers.addresses" {
				l.Errorf("%v", err)
			}
			maps := l.client.CoreV1().ConfigMaps("kube-system")
			_, err = maps.Create(l.ctx, machines(map[string]string{DefaultKey: text}), metav1.CreateOptions{})
			if err != nil {
				_, err = maps.Update(l.ctx, machines(map[string]string{DefaultKey: text}), metav1.UpdateOptions{})
			}
			if err != nil {
				l.Fatal(err)
			}
			l.later(time.Second)
		}
		if st, err := lb.EnsureLoadBalancer(l.ctx, "kubernetes", service("a", nil, 80), nil); err != nil || st.Ingress[0].IP != "192.0.2.1" {
			l.Errorf("%v, %v", st, err)
		}
	})
}

func TestReference(t *testing.T) {
	for config, want := range map[string]string{
		"configMap: kube-system":                   `line 1: configMap: "kube-system": want NAMESPACE/NAME`,
		"configMap: kube-system/a/b":               `line 1: configMap: "kube-system/a/b": want NAMESPACE/NAME`,
		"configMap: ''":                            `line 1: configMap: "": want NAMESPACE/NAME`,
		"configMap: a/b\nkey: ../b/c":              `line 2: key: "../b/c" is no key of a ConfigMap`,
		"configMap: a/b\nmachines: [{name: n-1}]":  `unknown field "machines"`,
		"configMap: [a/b]":                         `cannot unmarshal array into Go`,
		"machines: [{name: n-1}]\nconfigMaps: a/b": `unknown field "configMaps"`,
	} {
		if _, _, err := open(t, config); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v, want %q", config, err, want)
		}
	}
	if c, _, err := open(t, "configMap: a/b"); err != nil || c.watched.Key != DefaultKey {
		t.Errorf("%v", err)
	}
}
