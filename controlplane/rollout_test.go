package controlplane

// Deployments as people use them: kubectl's verbs against a real API server and the
// controllers.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/cmd"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/auth/pki"
)

// kubectl runs a command of kubectl, linked in, and returns what it prints.
func (c workload) kubectl(args ...string) (string, error) {
	conf := c.as(c.keys, pki.Admin)
	flags := genericclioptions.NewConfigFlags(true).WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	flags.APIServer, flags.Namespace, flags.CacheDir = ptr.To(c.host), ptr.To(workNamespace), ptr.To(c.t.TempDir())
	flags.WrapConfigFn = func(asked *rest.Config) *rest.Config {
		conf.Impersonate = asked.Impersonate // --as
		return conf
	}
	var out bytes.Buffer
	root := cmd.NewKubectlCommand(cmd.KubectlOptions{
		ConfigFlags: flags, Arguments: append([]string{"kubectl"}, args...),
		// kubectl has warnings to all clients of this process go to ErrOut.
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(""), Out: &out, ErrOut: io.Discard},
	})
	root.SetArgs(args)
	root.SetContext(c.t.Context())
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		cmdutil.BehaviorOnFatal(func(message string, code int) { // where kubectl would exit
			failed <- fmt.Errorf("exit code %d: %s", code, message)
			runtime.Goexit()
		})
		if err := root.Execute(); err != nil {
			failed <- err
		}
	}()
	err := <-failed
	return out.String(), err
}

// sees runs kubectl and wants it to print what matches a regular expression.
func (c workload) sees(want string, args ...string) {
	c.t.Helper()
	out, err := c.kubectl(args...)
	if err != nil || !regexp.MustCompile("(?ms)"+want).MatchString(out) {
		c.t.Errorf("kubectl %s: %v\n%s\nwant %s", strings.Join(args, " "), err, out, want)
	}
}

// serving makes pods with the label app=front ready, and ends those that are being
// deleted, as nodes would, but for those of the image broken, until stop is called.
func (c workload) serving() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	pods := c.admin.CoreV1().Pods(workNamespace)
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=front"})
			for i := 0; err == nil && i < len(list.Items); i++ {
				p := &list.Items[i]
				if p.DeletionTimestamp != nil {
					_ = pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
					continue
				}
				if len(p.Status.ContainerStatuses) > 0 || p.Spec.Containers[0].Image == "broken" {
					continue
				}
				p.Status = corev1.PodStatus{
					Phase:             corev1.PodRunning,
					Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
					ContainerStatuses: []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name, Ready: true}},
				}
				_, _ = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}) // the next round tries again
			}
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestRollout(t *testing.T) {
	c := workload{startCluster(t)}
	defer c.serving()()
	t.Run("made and changed", c.rolledOut)
	t.Run("wrong and undone", c.undone)
	t.Run("paused and resumed", c.paused)
	t.Run("deleted", c.cascaded)
	if !c.writers.wrote("deployment-controller") {
		t.Error("nothing was written by deployment-controller")
	}
}

func (c workload) rolledOut(*testing.T) {
	c.sees(`^deployment.apps/front created\n$`, "create", "deployment", "front", "--image=one", "--replicas=3")
	c.sees(`deployment "front" successfully rolled out`, "rollout", "status", "deployment/front")
	c.sees(`^front +3/3 +3 +3 +\d+s$`, "get", "deploy")
	const managers = `{.manager}/{.subresource} {end}` // in the order of their times, which are whole seconds
	c.sees(`^(kube-controller-manager/status kubectl-create/|kubectl-create/ kube-controller-manager/status) $`, "get", "deploy/front", "-o", `jsonpath={range .metadata.managedFields[*]}`+managers)
	c.sees(`^kube-controller-manager/(status kube-controller-manager/| kube-controller-manager/status) $`, "get", "rs", "-l", "app=front", "-o", `jsonpath={range .items[0].metadata.managedFields[*]}`+managers)
	c.sees(`^kube-apiserver/ $`, "get", "endpoints/kubernetes", "-n", "default", "-o", `jsonpath={range .metadata.managedFields[*]}`+managers)
	c.sees(`^front-[a-z0-9]+ +3 +3 +3 +\d+s +one +one +app=front,pod-template-hash=`, "get", "rs", "-o", "wide")
	c.sees(`ScalingReplicaSet .*deployment-controller.*Scaled up replica set front-[a-z0-9]+ from 0 to 3`, "describe", "deploy", "front")
	c.sees(`deployment.apps/front image updated`, "set", "image", "deploy/front", "*=two")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
	c.sees(`annotated`, "annotate", "deploy/front", "kubernetes.io/change-cause=two")
	c.sees(`^deployment.apps/front scaled\n$`, "scale", "deploy/front", "--replicas=5")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
	c.sees(`^front +5/5 +5 +5 `, "get", "deploy")
	c.becomes("1 <none>, 2 two", c.history)
}

func (c workload) undone(t *testing.T) {
	c.sees(`image updated`, "set", "image", "deploy/front", "*=broken")
	if out, err := c.kubectl("rollout", "status", "deploy/front", "--timeout=1s"); err == nil || !strings.Contains(out, "Waiting for deployment") {
		t.Errorf("status of what is stuck: %v: %s", err, out)
	}
	c.becomes("3 broken 4 serve", func() string {
		s := c.front()
		return fmt.Sprintf("%d broken %d serve", s.UpdatedReplicas, s.AvailableReplicas)
	})
	c.sees(`^deployment.apps/front rolled back\n$`, "rollout", "undo", "deploy/front")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
	c.sees(`Image:\s+one$`, "rollout", "history", "deploy/front", "--revision=1")
	c.sees(`rolled back`, "rollout", "undo", "deploy/front", "--to-revision=1")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
	c.sees(`^5 5 one$`, "get", "deploy/front", "-o", `jsonpath={.metadata.annotations.deployment\.kubernetes\.io/revision} {.status.updatedReplicas} {.spec.template.spec.containers[0].image}`)
	if _, err := c.kubectl("rollout", "undo", "deploy/front", "--to-revision=77"); err == nil {
		t.Error("undone to a revision that there is not")
	}
}

func (c workload) paused(t *testing.T) {
	c.sees(`deployment.apps/front paused`, "rollout", "pause", "deploy/front")
	c.sees(`image updated`, "set", "image", "deploy/front", "*=three")
	c.becomes("DeploymentPaused, 0 updated", func() string {
		s := c.front()
		for _, cond := range s.Conditions {
			if cond.Type == appsv1.DeploymentProgressing {
				return fmt.Sprintf("%s, %d updated", cond.Reason, s.UpdatedReplicas)
			}
		}
		return "no condition"
	})
	if out, err := c.kubectl("rollout", "undo", "deploy/front"); err == nil || !strings.Contains(fmt.Sprint(err, out), "paused deployment") {
		t.Errorf("undo of what is paused: %v %s", err, out)
	}
	c.sees(`deployment.apps/front resumed`, "rollout", "resume", "deploy/front")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
	c.sees(`deployment.apps/front restarted`, "rollout", "restart", "deploy/front")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
}

// cascaded: a Deployment goes with all that is its own, or without.
func (c workload) cascaded(*testing.T) {
	left := func() string {
		out, err := c.kubectl("get", "rs,pods", "-o", "name")
		if err != nil {
			return err.Error()
		}
		return out
	}
	c.sees(`deleted`, "delete", "deploy/front", "--cascade=orphan")
	orphans := left()
	c.sees(`created`, "create", "deployment", "front", "--image=four", "--replicas=5")
	c.sees(`successfully rolled out`, "rollout", "status", "deploy/front")
	for _, name := range strings.Fields(orphans) {
		if strings.HasPrefix(name, "replicaset.apps/") && !strings.Contains(left(), name) {
			c.t.Errorf("%s is gone", name)
		}
	}
	c.sees(`deleted`, "delete", "deploy/front", "--cascade=foreground")
	c.becomes("", left)
}

// front is the status of the Deployment front.
func (c workload) front() appsv1.DeploymentStatus {
	c.t.Helper()
	d, err := c.admin.AppsV1().Deployments(workNamespace).Get(c.t.Context(), "front", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return d.Status
}

// history is the revisions of the Deployment front and their causes.
func (c workload) history() string {
	c.t.Helper()
	out, err := c.kubectl("rollout", "history", "deploy/front")
	if err != nil {
		c.t.Fatal(err)
	}
	var rows []string
	for _, line := range strings.Split(out, "\n") {
		if f := strings.Fields(line); len(f) == 2 && f[0] != "REVISION" {
			rows = append(rows, strings.Join(f, " "))
		}
	}
	return strings.Join(rows, ", ")
}
