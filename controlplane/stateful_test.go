package controlplane

// StatefulSets as people use them: kubectl's verbs against a real API server and the
// controllers.

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const statefulManifest = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: front}
spec:
  serviceName: front
  replicas: 2
  selector: {matchLabels: {app: front}}
  template:
    metadata: {labels: {app: front}}
    spec: {containers: [{name: c, image: one}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Delete}
`

// TestStateful: pods with names of their own, made one after the other; rolled out, shown,
// undone, scaled, and gone with their claims.
func TestStateful(t *testing.T) {
	c := workload{startCluster(t)}
	defer c.serving()()
	file := filepath.Join(t.TempDir(), "stateful.yaml")
	if err := os.WriteFile(file, []byte(statefulManifest), 0o600); err != nil {
		t.Fatal(err)
	}
	c.sees(`^statefulset.apps/front created\n$`, "create", "-f", file)
	images := func() string {
		var out []string
		for _, p := range c.pods("app=front") {
			out = append(out, p.Name+"="+p.Spec.Containers[0].Image)
		}
		return strings.Join(out, " ")
	}
	c.becomes("front-0=one front-1=one", images)
	c.sees(`partitioned roll out complete: 2 new pods`, "rollout", "status", "sts/front")
	c.sees(`^front +2/2 +\d+s$`, "get", "sts")
	c.sees(`SuccessfulCreate .*statefulset-controller.*Create Claim data-front-0 Pod front-0 in StatefulSet front success`, "describe", "sts", "front")
	c.sees(`SuccessfulCreate .*statefulset-controller.*Create Pod front-1 in StatefulSet front successful`, "describe", "sts", "front")
	c.sees(`image updated`, "set", "image", "sts/front", "*=two")
	c.sees(`partitioned roll out complete: 2 new pods`, "rollout", "status", "sts/front")
	c.becomes("front-0=two front-1=two", images)
	c.sees(`^1 +<none>$\s^2 +<none>$`, "rollout", "history", "sts/front")
	c.sees(`Image:\s+one$`, "rollout", "history", "sts/front", "--revision=1")
	c.sees(`^statefulset.apps/front rolled back\n$`, "rollout", "undo", "sts/front")
	c.sees(`partitioned roll out complete: 2 new pods`, "rollout", "status", "sts/front")
	c.becomes("front-0=one front-1=one", images)
	c.sees(`restarted`, "rollout", "restart", "sts/front")
	c.sees(`partitioned roll out complete: 2 new pods`, "rollout", "status", "sts/front")

	c.sees(`scaled`, "scale", "sts/front", "--replicas=3")
	c.becomes("front-0=one front-1=one front-2=one", images)
	c.sees(`scaled`, "scale", "sts/front", "--replicas=1")
	c.becomes("data-front-0", func() string { // the claims of the others are gone with them
		out, err := c.kubectl("get", "pvc", "-o", "jsonpath={.items[*].metadata.name}")
		return fmt.Sprint(out, map[bool]string{true: "failed"}[err != nil])
	})
	c.sees(`deleted`, "delete", "sts/front", "--cascade=foreground")
	c.becomes("", func() string {
		out, err := c.kubectl("get", "pods,controllerrevisions,pvc", "-o", "name")
		return fmt.Sprint(out, map[bool]string{true: "failed"}[err != nil])
	})
	if !c.writers.wrote("statefulset-controller") {
		t.Error("nothing was written by statefulset-controller")
	}
}
