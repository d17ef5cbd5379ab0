"""Run times by a weighted mean of boosted trees and life tables: features, trees, predictor."""
