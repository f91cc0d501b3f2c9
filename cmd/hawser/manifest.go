// hawser manifest: YAML for kubectl and for other programs of a cluster.

package main

import (
	"fmt"
	"io"

	"github.com/distribution/reference"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

func newManifest() *cobra.Command {
	cmd := &cobra.Command{
		Use: "manifest", Short: "Print what a cluster needs for a hub beside it",
		Args: cobra.NoArgs, // see newToken
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newManifestRBAC(),
		newManifestServer(),
		newManifestAgent(),
		newManifestEgress(),
		newManifestCCM(),
	)
	return cmd
}

// checkNamespace refuses a --namespace that no cluster can have.
func checkNamespace(namespace string) error {
	if msgs := validation.IsDNS1123Label(namespace); len(msgs) > 0 {
		return fmt.Errorf("--namespace %q: %s", namespace, msgs[0])
	}
	return nil
}

// checkImage refuses an --image that no kubelet can pull.
func checkImage(image string) error {
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		return fmt.Errorf("--image %q: %w: want [REGISTRY/]NAME[:TAG][@DIGEST]", image, err)
	}
	return nil
}

// printObjects writes objects of API types as YAML documents, without what a server fills in.
func printObjects(out io.Writer, objects ...runtime.Object) error {
	for _, o := range objects {
		kinds, _, err := scheme.Scheme.ObjectKinds(o)
		if err != nil {
			return err
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		u := unstructured.Unstructured{Object: fields}
		u.SetGroupVersionKind(kinds[0])
		for _, path := range [][]string{{"status"}, {"metadata", "creationTimestamp"}, {"spec", "template", "metadata", "creationTimestamp"}} {
			unstructured.RemoveNestedField(u.Object, path...)
		}
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			return err
		}
		if _, err = fmt.Fprintf(out, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
